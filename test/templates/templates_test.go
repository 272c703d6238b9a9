package templates

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

const examples = "../../configs/examples/templates"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, name))
	check(t, err)
	return string(text)
}

// configDir returns a directory with the service file of the examples.
func configDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	check(t, os.WriteFile(dir+"/web.toml", []byte(example(t, "web.toml")), 0o644))
	return dir
}

// inUse returns what svcproxy reads in a directory: endpoints, and faults.
func inUse(t *testing.T, dir string) string {
	t.Helper()
	files, err := read.Rules{}.ReadDir(dir, nil)
	check(t, err)
	var out []string
	for _, f := range files {
		for _, fault := range f.Faults {
			out = append(out, strings.ReplaceAll(fault.String(), dir+"/", ""))
		}
		for _, s := range f.Services {
			for _, e := range s.Endpoints {
				out = append(out, fmt.Sprintf("%s:%d", e.Addr, e.Port(s.Ports[0])))
			}
		}
	}
	return strings.Join(out, " ")
}

// await waits until svcproxy reads what is wanted.
func await(t *testing.T, dir, want string) {
	t.Helper()
	for range 3000 {
		if inUse(t, dir) == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("svcproxy reads %q, want %q", inUse(t, dir), want)
}

// A registry answers as Consul and Nomad do: at once, or when there is something new.
type registry struct {
	mu    sync.Mutex
	index int
	addrs []string
	news  chan struct{} // closed when there is
}

func newRegistry(addrs ...string) *registry {
	return &registry{index: 1, addrs: addrs, news: make(chan struct{})}
}

func (r *registry) set(addrs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.news)
	r.index, r.addrs, r.news = r.index+1, addrs, make(chan struct{})
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	index, news := r.index, r.news
	r.mu.Unlock()
	if q.URL.Query().Get("index") == fmt.Sprint(index) {
		select {
		case <-news:
		case <-q.Context().Done():
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Header().Set("X-Consul-Index", fmt.Sprint(r.index))
	w.Header().Set("X-Nomad-Index", fmt.Sprint(r.index))
	var answer any
	switch q.URL.Path {
	case "/v1/health/service/web":
		answer = r.consul()
	case "/v1/service/web":
		answer = r.nomad()
	default:
		http.NotFound(w, q)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

type object = map[string]any

func (r *registry) consul() []object {
	list := []object{}
	for i, addr := range r.addrs {
		list = append(list, object{
			"Node":    object{"Node": fmt.Sprint("node", i), "Address": addr},
			"Service": object{"ID": addr, "Service": "web", "Address": addr, "Port": 8000 + i, "Weights": object{"Passing": 1, "Warning": 1}},
			"Checks":  []object{{"CheckID": "c", "Status": "passing"}},
		})
	}
	return list
}

func (r *registry) nomad() []object {
	list := []object{}
	for i, addr := range r.addrs {
		list = append(list, object{"ID": addr, "ServiceName": "web", "Address": addr, "Port": 8000 + i})
	}
	return list
}

// build is where consul-template is built: some 15 s of a core, once.
var build string

func renderer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(build, "consul-template")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if out, err := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/hashicorp/consul-template").CombinedOutput(); err != nil {
		t.Fatalf("building consul-template: %v\n%s", err, out)
	}
	return path
}

func TestMain(m *testing.M) {
	var err error
	if build, err = os.MkdirTemp("", "svcproxy-templates-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(build)
	os.Exit(code)
}

// render runs consul-template with a configuration until the test ends.
func render(t *testing.T, config string) {
	t.Helper()
	path := t.TempDir() + "/config.hcl"
	check(t, os.WriteFile(path, []byte(config), 0o644))
	cmd := exec.Command(renderer(t), "-config", path)
	var log bytes.Buffer
	cmd.Stderr, cmd.Stdout = &log, &log
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// What consul-template makes of the template is what svcproxy reads, with endpoints and without.
func TestConsulTemplate(t *testing.T) {
	r := newRegistry("10.1.0.1", "10.1.0.2")
	server := httptest.NewServer(r)
	t.Cleanup(server.Close) // after consul-template has ended, whose questions it waits for
	dir := configDir(t)
	here, err := filepath.Abs(examples)
	check(t, err)
	config := strings.NewReplacer("/etc/consul-template", here, "/etc/svcproxy", dir).Replace(example(t, "consul-template.hcl"))
	render(t, fmt.Sprintf("consul {\n  address = %q\n}\n", server.Listener.Addr())+config)
	goesThrough(t, r, dir)
}

// Nomad renders its template blocks by consul-template's library.
func TestNomad(t *testing.T) {
	r := newRegistry("10.1.0.1", "10.1.0.2")
	server := httptest.NewServer(r)
	t.Cleanup(server.Close) // after consul-template has ended, whose questions it waits for
	dir := configDir(t)
	block := strings.Replace(example(t, "nomad.hcl"), "/svcproxy/", dir+"/", 1)
	block = strings.Replace(block, "change_mode = \"noop\"\n", "", 1) // of Nomad itself
	block = strings.Replace(block, "  data ", "  contents ", 1)       // which is called so there
	render(t, fmt.Sprintf("nomad {\n  address = %q\n}\n", server.URL)+block)
	goesThrough(t, r, dir)
}

func goesThrough(t *testing.T, r *registry, dir string) {
	t.Helper()
	await(t, dir, "10.1.0.1:8000 10.1.0.2:8001")
	r.set("10.1.0.3")
	await(t, dir, "10.1.0.3:8000")
	r.set()
	await(t, dir, "")
	r.set("10.1.0.4", "10.1.0.5")
	await(t, dir, "10.1.0.4:8000 10.1.0.5:8001")
}

// docker-gen's words, as its documentation has them, and what it knows of containers.
type (
	container struct {
		Labels   map[string]string
		Networks []network
		State    struct{ Running bool }
	}
	network struct{ Name, IP string }
)

var words = template.FuncMap{
	"whereLabelValueMatches": func(list []container, label, pattern string) (out []container) {
		for _, c := range list {
			if "^"+c.Labels[label]+"$" == pattern {
				out = append(out, c)
			}
		}
		return out
	},
	"where": func(list []network, key, value string) []network {
		if key != "Name" {
			panic("where is known here for names only")
		}
		return slices.DeleteFunc(slices.Clone(list), func(n network) bool { return n.Name != value })
	},
}

func TestDockerGen(t *testing.T) {
	parsed, err := template.New("").Funcs(words).Parse(example(t, "web.endpoints.toml.tmpl"))
	check(t, err)
	of := func(label, ip string, running bool) container {
		c := container{Labels: map[string]string{"svcproxy": label}, Networks: []network{{"other", "10.9.0.1"}, {"bridge", ip}}}
		c.State.Running = running
		return c
	}
	dir := configDir(t)
	for want, containers := range map[string][]container{
		"":                                {of("shop", "172.17.0.2", true), of("web", "172.17.0.3", false), of("web", "", true)},
		"172.17.0.3:8080 172.17.0.4:8080": {of("web", "172.17.0.3", true), of("shop", "172.17.0.2", true), of("web", "172.17.0.4", true)},
	} {
		var text bytes.Buffer
		check(t, parsed.Execute(&text, containers))
		check(t, os.WriteFile(dir+"/web.endpoints.toml", text.Bytes(), 0o644))
		if got := inUse(t, dir); got != want {
			t.Errorf("svcproxy reads %q, want %q, of\n%s", got, want, &text)
		}
	}
}
