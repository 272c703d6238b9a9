package convert_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// inputs make a text of what the table of a program in docs/moving.md says is written.
var inputs = map[string]func([]string) string{"keepalived": keepalivedOf, "ipvsadm": ipvsadmOf, "iptables": iptablesOf, "haproxy": haproxyOf}

// spans are pieces of code at the beginning of a cell, with commas between them.
var spans = regexp.MustCompile("^`[^`]+`(, `[^`]+`)*")

func codeOf(cell string) []string {
	first := spans.FindString(cell)
	if first == "" {
		return nil
	}
	return strings.Split(strings.Trim(first, "`"), "`, `")
}

// What the page on moving says of each program is so: what is in the left column becomes what is in the right one,
// or has a line.
func TestMovingIsRight(t *testing.T) {
	page, err := os.ReadFile("../../../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	program := ""
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 2 || !strings.HasPrefix(line, "| ") {
			program = ""
			continue
		}
		left, right := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1])
		switch {
		case right == "svcproxy":
			program = strings.ToLower(left)
		case program != "" && left != "---":
			rows[program]++
			row(t, program, left, right)
		}
	}
	for _, f := range convert.Formats {
		if rows[f.Name] < 4 {
			t.Errorf("%s has %d rows in docs/moving.md", f.Name, rows[f.Name])
		}
	}
}

// special are inputs of rows that begin with words.
var special = map[string]func(*testing.T) string{
	"rules of kube-proxy": func(t *testing.T) string {
		ar, err := txtar.ParseFile("testdata/iptables/kube-proxy.txtar")
		if err != nil {
			t.Fatal(err)
		}
		return section(ar, "in")
	},
	"all real servers fail": func(*testing.T) string { return keepalivedOf([]string{"TCP_CHECK"}) },
}

func row(t *testing.T, program, left, right string) {
	t.Helper()
	written := codeOf(left)
	inputOf, text := inputs[program], ""
	switch {
	case special[left] != nil:
		text = special[left](t)
		if written = codeOf(right[strings.Index(right, "`"):]); len(written) == 0 {
			t.Errorf("%s: %q has no code", program, right)
		}
		right = "`" + strings.Join(written, "`, `") + "`"
	case len(written) == 0 || inputOf == nil && withKubernetes:
		t.Errorf("%s: row %q cannot be tried", program, left)
		return
	case inputOf == nil:
		return
	default:
		text = inputOf(written)
	}
	d, err := document(format(t, program), reader.Input{Name: "in", Data: []byte(text)})
	if err != nil {
		t.Errorf("%s: %s: %v of\n%s", program, left, err, text)
		return
	}
	if strings.HasPrefix(right, "*left out*") {
		if missing := unnamed(program, text, written, linesOf(d.Notes)); missing != "" {
			t.Errorf("%s: %s: no line names %q in\n%s\n%v", program, left, missing, text, d.Notes)
		}
		return
	}
	code := codeOf(right)
	if len(code) == 0 {
		t.Errorf("%s: %q is neither code nor *left out*", program, right)
	}
	for _, want := range code {
		if !slices.ContainsFunc(strings.Split(string(d.TOML), "\n"), func(line string) bool {
			return strings.Contains(line, want) && (!strings.HasPrefix(strings.TrimSpace(line), "#") || strings.HasPrefix(want, "#"))
		}) {
			t.Errorf("%s: %s: no %s in\n%s\nof\n%s", program, left, want, d.TOML, text)
		}
	}
}

// unnamed returns what of all that is written has no line; empty: nothing. Lines of Kubernetes are those where objects begin.
func unnamed(program, text string, written []string, notes map[int][]string) string {
	ofObject := program == "kubernetes" || program == "cilium"
	lines := strings.Split(text, "\n")
	for _, w := range written {
		if strings.HasPrefix(w, "server a 10.0.0.2:80 check") && len(written) > 1 {
			continue // beside what it is about
		}
		if w == "mode http" {
			w = "listen web" // which it is about
		}
		named := false
		for at, texts := range notes {
			left := slices.ContainsFunc(texts, func(s string) bool {
				return strings.Contains(s, "left out") || strings.Contains(s, "open to all") || strings.Contains(s, "sets no weight")
			})
			named = named || left && at > 0 && (ofObject || strings.Contains(lines[at-1], w))
		}
		if !named {
			return w
		}
	}
	return ""
}

// keepalivedOf puts statements where they belong.
func keepalivedOf(written []string) string {
	levels := map[string][]string{}
	for _, w := range written {
		key := strings.Fields(w)[0]
		level := "server"
		switch {
		case strings.HasPrefix(key, "virtual_server"), key == "vrrp_instance", strings.HasPrefix(key, "~"):
			level = "root"
		case key == "lvs_sync_daemon", key == "script_user":
			level = "global"
		case slices.Contains([]string{"weight", "uthreshold", "lthreshold", "inhibit_on_failure", "notify_up"}, key) || strings.Contains(key, "_CHECK") || strings.Contains(key, "_GET"):
			level = "real"
		case slices.Contains([]string{"connect_timeout", "retry", "connect_ip", "delay_before_retry"}, key):
			level = "check"
		case key == "misc_dynamic":
			level = "misc"
		case key == "delay_loop":
			levels["check"] = append(levels["check"], "alpha")
		}
		if level == "root" && strings.HasPrefix(w, "virtual_server") {
			w += " {\nreal_server 10.0.0.1 80 {\n}\n}"
		}
		if key == "real_server" {
			w += " {\n}"
		}
		levels[level] = append(levels[level], w)
	}
	block := func(head, level string) string {
		if len(levels[level]) == 0 {
			return ""
		}
		return head + " {\n" + strings.Join(levels[level], "\n") + "\n}\n"
	}
	protocol := "protocol TCP\n"
	if slices.ContainsFunc(levels["server"], func(w string) bool { return strings.HasPrefix(w, "protocol") }) {
		protocol = ""
	}
	if levels["misc"] != nil {
		levels["misc"] = append(levels["misc"], "misc_path /bin/alive")
	}
	return strings.Join(levels["root"], "\n") + "\n" + block("global_defs", "global") + "virtual_server 192.0.2.9 80 {\n" + protocol + strings.Join(levels["server"], "\n") +
		"\nreal_server 10.0.0.1 80 {\n" + strings.Join(levels["real"], "\n") + "\n" + block("TCP_CHECK", "check") + block("MISC_CHECK", "misc") +
		"}\nreal_server 10.0.0.3 80 {\n}\n}\n"
}

func ipvsadmOf(written []string) string {
	server, lines := "-A -t 192.0.2.1:80", []string{}
	for _, w := range written {
		switch {
		case strings.HasPrefix(w, "-A -t"), strings.HasPrefix(w, "-A -u"):
			server = w
		case slices.Contains([]string{"-A", "-a", "-C", "--set", "--start-daemon"}, strings.Fields(w)[0]):
			lines = append(lines, w)
		default:
			server += " " + w
		}
	}
	frontend := strings.Join(strings.Fields(server)[1:3], " ")
	lines = append(lines, "-a "+frontend+" -r 10.0.0.9:80 -m")
	return strings.Join(append([]string{server}, lines...), "\n") + "\n"
}

func iptablesOf(written []string) string {
	return "*nat\n-A PREROUTING -d 192.0.2.9 -p tcp --dport 80 -j DNAT --to-destination 10.0.0.9\n" + strings.Join(written, "\n") + "\nCOMMIT\n"
}

func haproxyOf(written []string) string {
	text := "defaults\nmode tcp\nlisten web\n"
	has := func(word string) bool {
		return slices.ContainsFunc(written, func(w string) bool { return strings.HasPrefix(w, word) })
	}
	if !has("bind ") {
		text += "bind 192.0.2.1:80\n"
	}
	if text += strings.Join(written, "\n") + "\n"; has(".if ") {
		text += ".endif\n"
	}
	if !has("server") {
		text += "server z 10.0.0.1:80\n"
	}
	return text
}

// kubeOf makes a Service and an EndpointSlice, as documents or as the lists of Cilium.
func kubeOf(cilium bool) func([]string) string {
	return func(written []string) string {
		part := map[string]string{"spec": "", "annotations": "", "status": "", "endpoint": "", "slice": "", "label": "kubernetes.io/service-name: web", "kind": ""}
		for _, w := range written {
			key, _, _ := strings.Cut(w, ":")
			in := "spec"
			switch key {
			case "ingress":
				in = "status"
			case "nodeName", "zone", "conditions":
				in = "endpoint"
			case "service.cilium.io/weight":
				in = "slice"
			case "kubernetes.io/service-name":
				part["label"], in = "", "label"
			case "kind":
				in = "kind"
			}
			if strings.HasPrefix(key, "service.") && in == "spec" {
				in = "annotations"
			}
			if part[in] != "" {
				part[in] += ", "
			}
			part[in] += w
		}
		spec := part["spec"]
		for _, standard := range []string{"clusterIP: 10.96.0.1", "ports: [{port: 80}]"} {
			if key, _, _ := strings.Cut(standard, ":"); !strings.Contains(spec, key+":") {
				spec += ", " + standard
			}
		}
		service := fmt.Sprintf("metadata: {name: web, annotations: {%s}}\nspec: {%s}\nstatus: {loadBalancer: {%s}}\n", part["annotations"], strings.TrimPrefix(spec, ", "), part["status"])
		slice := fmt.Sprintf("metadata: {name: web-1, labels: {%s}, annotations: {%s}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [192.168.10.1]%s}]\n",
			part["label"], part["slice"], strings.TrimSuffix(", "+part["endpoint"], ", "))
		if cilium {
			item := func(text string) string {
				return "- " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
			}
			return "services:\n" + item(service) + "endpoints:\n" + item(slice)
		}
		text := "kind: Service\n" + service + "---\nkind: EndpointSlice\n" + slice
		if part["kind"] != "" {
			text += "---\n" + part["kind"] + "\nmetadata: {name: other}\n"
		}
		return text
	}
}
