//go:build !nokubernetes

package kubernetes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/kubernetes"
)

// A manifestReader collects objects.
type manifestReader struct {
	*reader.Result
	all   *kubernetes.Manifests
	at    []reader.Position   // of objects, by their number
	texts map[int]service     // by their number
	seen  map[source.Key]bool // services
}

// An object is what all kinds have.
type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// A service is what source/kubernetes does not carry over of a Service.
type service struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Ranges []string `json:"loadBalancerSourceRanges"`
		IP     string   `json:"loadBalancerIP"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct{ IP, IPMode, Hostname string } `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

// Read reads objects of Kubernetes: YAML or JSON, any number of documents, and lists.
func Read(in reader.Input) *reader.Result {
	r := newManifestReader()
	r.Missing = "write its endpoints, or print them with kubectl get services,endpointslices -A -o yaml"
	for _, d := range documents(in) {
		r.add(d.at, itemLines(d.text, "items"), jsonOf(d.at, d.text), "", 0)
	}
	return r.finish(in.Name)
}

// ReadCilium reads the state file of Cilium's standalone load balancer: objects of Kubernetes in
// two lists, without their kinds.
func ReadCilium(in reader.Input) *reader.Result {
	all := slices.DeleteFunc(documents(in), func(d document) bool { return !d.has })
	at := reader.Position{File: in.Name, Line: 1}
	if len(all) > 1 {
		reader.Fail(all[1].at, "a state file has one document; svcproxy convert kubernetes reads several")
	}
	var state struct {
		Services, Endpoints []json.RawMessage
	}
	if err := json.Unmarshal(jsonOf(at, in.Data), &state); err != nil {
		reader.Fail(at, "it is no state file: %s", objectError(err))
	}
	if state.Services == nil {
		reader.Fail(at, "it has no key services, as a state file has; svcproxy convert kubernetes reads objects and lists of Kubernetes")
	}
	r := newManifestReader()
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(jsonOf(at, in.Data), &keys) // which was read above
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != "services" && key != "endpoints" {
			r.Note(at, source.Excerpt(key)+" is left out: a state file has services and endpoints", "")
		}
	}
	r.addAll(at, itemLines(in.Data, "services"), state.Services, "Service", 0)
	r.addAll(at, itemLines(in.Data, "endpoints"), state.Endpoints, "EndpointSlice", 0)
	return r.finish(in.Name)
}

// yamlLine matches the line number in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`^line (\d+): `)

// jsonOf converts a YAML document to JSON. The position is that of its first line.
func jsonOf(at reader.Position, text []byte) []byte {
	out, err := yaml.YAMLToJSON(text)
	if err == nil {
		return out
	}
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		n, _ := strconv.Atoi(m[1])
		at.Line, msg = at.Line+n-1, msg[len(m[0]):]
	}
	syntax := "YAML"
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		syntax = "JSON"
	}
	reader.Fail(at, "it is no %s: %s", syntax, source.Printable(msg))
	return nil
}

// itemLines returns the lines, counted from 0, at which the items of a top-level list begin. It reads block YAML and the
// indented JSON of kubectl, and returns nil for other layouts.
func itemLines(text []byte, key string) (list []int) {
	n, indent, inside := -1, -1, false
	for line := range bytes.Lines(text) {
		n++
		words := bytes.TrimSpace(line)
		at := len(line) - len(bytes.TrimLeft(line, " "))
		begins := len(words) > 0 && (words[0] == '{' || words[0] == '-' && (len(words) == 1 || words[1] == ' '))
		switch {
		case len(words) == 0 || words[0] == '#':
		case !inside:
			inside = at == 0 && string(words) == key+":" || string(words) == `"`+key+`": [`
		case begins && (at == indent || indent < 0):
			indent, list = at, append(list, n)
		case at < indent || at == indent && words[0] != '}':
			return list
		}
	}
	return list
}

// objectError describes a decoding error without Go type names.
func objectError(err error) string {
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return source.Printable(err.Error())
	}
	return fmt.Sprintf("%s may not be of type %s", cmp.Or(source.Printable(e.Field), "it"), e.Value)
}

func newManifestReader() *manifestReader {
	return &manifestReader{Result: &reader.Result{}, all: kubernetes.NewManifests(), texts: map[int]service{}, seen: map[source.Key]bool{}}
}

// A document is one of those that a text of YAML has, by lines of three dashes between them.
type document struct {
	at   reader.Position
	text []byte
	has  bool // more than blank lines, comments and directives
}

// documents splits a text. What stands behind three dashes is of the document that they begin. Directives are
// left out: one version of YAML is read, whatever they say.
func documents(in reader.Input) (out []document) {
	d := document{at: reader.Position{File: in.Name, Line: 1}}
	n := 0
	for line := range bytes.Lines(in.Data) {
		n++
		rest, begins := behind(line, "---")
		_, ends := behind(line, "...")
		switch {
		case begins || ends:
			out = append(out, d)
			d = document{at: reader.Position{File: in.Name, Line: n + 1}}
			if begins && rest != "" {
				d.at.Line, d.text, d.has = n, bytes.Clone(line), rest[0] != '#'
			}
		case !d.has && line[0] == '%':
			d.text = append(d.text, '\n')
		default:
			text := bytes.TrimSpace(line)
			d.has = d.has || len(text) > 0 && text[0] != '#'
			d.text = append(d.text, line...)
		}
	}
	return append(out, d)
}

// behind returns what stands behind a mark at the beginning of a line, which may be nothing.
func behind(line []byte, mark string) (rest string, marked bool) {
	text, marked := strings.CutPrefix(string(line), mark)
	rest = strings.TrimSpace(text)
	return rest, marked && (rest == "" || text[0] == ' ' || text[0] == '\t')
}

// addAll adds the objects of a list. Lines are their offsets from a position, or nil.
func (r *manifestReader) addAll(at reader.Position, lines []int, all []json.RawMessage, kind string, depth int) {
	for i, text := range all {
		item := at
		if len(lines) == len(all) {
			item.Line += lines[i]
		}
		r.add(item, nil, text, kind, depth)
	}
}

// add takes up an object, or all that a list has. A kind is that of objects that do not say it.
func (r *manifestReader) add(at reader.Position, lines []int, text []byte, kind string, depth int) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		reader.Fail(at, "it is no object of Kubernetes: %s", objectError(err))
	}
	o.Kind = cmp.Or(o.Kind, kind)
	key := source.Key{Namespace: cmp.Or(o.Metadata.Namespace, "default"), Name: o.Metadata.Name}
	switch isService := o.Kind == "Service"; {
	case bytes.Equal(bytes.TrimSpace(text), []byte("null")): // a document of comments
		return
	case strings.HasSuffix(o.Kind, "List") && depth < reader.MaxDepth:
		r.addAll(at, lines, o.Items, strings.TrimSuffix(o.Kind, "List"), depth+1)
		return
	case isService && strings.Contains(o.APIVersion, "/"): // of a group, such as that of Knative
		r.Note(at, "Service "+source.Excerpt(o.Metadata.Name)+" of "+source.Excerpt(o.APIVersion)+" is left out: it is no service of Kubernetes itself", "")
		return
	case isService && r.seen[key]:
		r.Note(at, "service "+source.Printable(key.String())+" is there already: the first one counts", "")
		return
	}
	known, err := r.all.Add(o.Kind, text, len(r.at))
	if err != nil {
		reader.Fail(at, "%s %s cannot be read: %s", source.Printable(o.Kind), source.Excerpt(o.Metadata.Name), objectError(err))
	}
	if !known {
		r.Note(at, source.Printable(cmp.Or(o.Kind, "object"))+" "+source.Excerpt(o.Metadata.Name)+" is left out: it is no service", "")
		return
	}
	if o.Kind == "Service" {
		var s service
		if err := json.Unmarshal(text, &s); err != nil {
			reader.Fail(at, "Service %s cannot be read: %s", source.Excerpt(o.Metadata.Name), objectError(err))
		}
		r.texts[len(r.at)], r.seen[key] = s, true
	}
	r.at = append(r.at, at)
}

// finish makes services of all objects.
func (r *manifestReader) finish(file string) *reader.Result {
	for _, c := range r.all.Services() {
		at, text := r.at[c.ID], r.texts[c.ID]
		name := source.Printable(c.Key.String())
		if proxy, named := text.Metadata.Labels[labelProxyName]; named {
			r.Note(at, "service "+name+" is left out: the label "+labelProxyName+" gives it to "+source.Excerpt(proxy), "")
			continue
		}
		if c.Service == nil {
			for _, msg := range c.Notes {
				r.Note(at, "service "+name+": "+msg, "")
			}
			continue
		}
		r.At = at
		r.Grow(len(c.Ports) * len(c.Endpoints))
		opens := text.denied(c.Service)
		for i, svc := range reader.SplitPorts(c.Service) {
			s := r.Add(at, c.Key.Namespace, svc.Name)
			svc.Name = s.Name
			s.Service, s.Opens = svc, len(opens) > 0
			reader.CommonTargets(svc)
			if i > 0 {
				continue
			}
			for _, msg := range c.Notes {
				s.Note(at, name+": "+msg, "")
			}
			for _, msg := range opens {
				s.Note(at, name+" "+msg, "write load_balancer_source_ranges")
			}
			text.leftOut(s)
		}
	}
	for _, o := range r.all.Orphans() {
		r.Note(r.at[o.ID], o.Note, "")
	}
	r.KeepsPods(file)
	return r.Result
}

// labelProxyName is the label by which a Service chooses another proxy than kube-proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Annotations about sources: of Cilium one that inverts the ranges of a Service, and of cloud providers ranges that hold
// where the Service has none.
const (
	rangesPolicy = "service.cilium.io/src-ranges-policy"
	cloudRanges  = "service.beta.kubernetes.io/load-balancer-source-ranges"
)

// aboutAccess matches annotations of cloud providers that say who may use a load balancer.
var aboutAccess = regexp.MustCompile(`^service\.beta\.kubernetes\.io/.*(allow|deny|range|firewall)|/.*(acl|security-group|source-range|whitelist)`)

// denied inverts ranges that are to be kept out. It returns what lets in sources that were kept out.
func (t *service) denied(s *source.Service) (opens []string) {
	if len(s.LoadBalancerIPs) == 0 {
		return nil
	}
	to := "all sources"
	if len(t.Spec.Ranges) > 0 {
		to = "all of load_balancer_source_ranges"
	}
	for _, key := range slices.Sorted(maps.Keys(t.Metadata.Annotations)) {
		text := t.Metadata.Annotations[key]
		if aboutAccess.MatchString(key) && (key != cloudRanges || len(t.Spec.Ranges) == 0) && !admitsAll(s, text) {
			opens = append(opens, "is open to "+to+" now: a load balancer admits those of "+source.Printable(key)+" = "+source.Excerpt(text))
		}
	}
	if !strings.EqualFold(t.Metadata.Annotations[rangesPolicy], "deny") {
		return opens
	}
	var denied []netip.Prefix
	for _, text := range t.Spec.Ranges {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			opens = append(opens, "lets in "+source.Excerpt(text)+": it is to be kept out, and is no range")
			continue
		}
		denied = append(denied, p)
	}
	if s.LoadBalancerSourceRanges = nil; len(denied) == 0 {
		return opens
	}
	if s.LoadBalancerSourceRanges = others(s, denied); len(s.LoadBalancerSourceRanges) == 0 {
		s.LoadBalancerSourceRanges = []netip.Prefix{reader.NoSource}
	}
	return opens
}

// others returns the sources that are in none of some ranges, and can get to a load balancer of the service.
func others(s *source.Service, ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(reader.RangesOf(ranges...).Not().Prefixes(), func(p netip.Prefix) bool {
		return !slices.ContainsFunc(s.LoadBalancerIPs, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
	})
}

// admitsAll reports whether the value of an annotation keeps nobody from a service: nothing, false, or ranges of everybody.
func admitsAll(s *source.Service, text string) bool {
	var list []netip.Prefix
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == ',' || c == ' ' }) {
		if p, err := netip.ParsePrefix(word); err == nil {
			list = append(list, p)
		}
	}
	return text == "" || text == "false" || len(others(s, list)) == 0
}

// leftOut notes annotations about what a Service does, and addresses of load balancers that packets do not get here by.
func (t *service) leftOut(s *reader.Service) {
	for _, key := range slices.Sorted(maps.Keys(t.Metadata.Annotations)) {
		value := t.Metadata.Annotations[key]
		isRead := key == rangesPolicy && (strings.EqualFold(value, "deny") || strings.EqualFold(value, "allow"))
		isLost := aboutAccess.MatchString(key) && (len(s.LoadBalancerIPs) == 0 || key == cloudRanges && len(t.Spec.Ranges) > 0)
		if strings.HasPrefix(key, "service.cilium.io/") && !isRead || isLost {
			s.Note(s.At, fmt.Sprintf("the annotation %s = %s is left out", source.Excerpt(key), source.Excerpt(value)), "see docs/moving.md")
		}
	}
	if len(t.Spec.Ranges) > 0 && len(s.LoadBalancerIPs) == 0 {
		s.Note(s.At, "loadBalancerSourceRanges "+source.Excerpt(strings.Join(t.Spec.Ranges, " "))+" is left out: no load balancer has an address that could be used",
			"write load_balancer_ips and load_balancer_source_ranges")
	}
	if a, err := netip.ParseAddr(t.Spec.IP); t.Spec.IP != "" && (err != nil || !slices.Contains(s.LoadBalancerIPs, a)) {
		s.Note(s.At, "loadBalancerIP "+source.Excerpt(t.Spec.IP)+" is left out: status.loadBalancer does not have it", "write it as load_balancer_ips where it is routed to this host")
	}
	for _, in := range t.Status.LoadBalancer.Ingress {
		switch {
		case in.IP == "":
			s.Note(s.At, "the load balancer "+source.Excerpt(in.Hostname)+" is left out: nothing is looked up by name", "write its addresses as load_balancer_ips where they are routed to this host")
		case in.IPMode != "" && in.IPMode != "VIP":
			s.Note(s.At, "the load balancer "+source.Excerpt(in.IP)+" is left out: with ipMode "+source.Excerpt(in.IPMode)+" it hands packets to node ports", "")
		}
	}
}
