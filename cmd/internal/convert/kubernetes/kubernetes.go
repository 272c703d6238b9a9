//go:build !nokubernetes

package kubernetes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	at    []reader.Position   // of services, by their number
	texts map[int]object      // of services, by their number
	seen  map[source.Key]bool // services
}

// An object is what all kinds have.
type object struct {
	Kind     string            `json:"kind"`
	Items    []json.RawMessage `json:"items"`
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// Read reads objects of Kubernetes: YAML or JSON, any number of documents, and lists.
func Read(in reader.Input) (*reader.Result, error) {
	r := newManifestReader()
	for _, d := range documents(in) {
		text, err := jsonOf(d.at, d.text)
		if err != nil {
			return nil, err
		}
		if err := r.add(d.at, text, "", 0); err != nil {
			return nil, err
		}
	}
	return r.finish(in.Name)
}

// ReadCilium reads the state file of Cilium's standalone load balancer: objects of Kubernetes in
// two lists, without their kinds.
func ReadCilium(in reader.Input) (*reader.Result, error) {
	at := reader.Position{File: in.Name}
	text, err := jsonOf(at, in.Data)
	if err != nil {
		return nil, err
	}
	var state struct {
		Services, Endpoints []json.RawMessage
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return nil, reader.ErrorAt(at, "it is no state file: %s", source.Printable(err.Error()))
	}
	r := newManifestReader()
	for _, l := range []struct {
		kind    string
		objects []json.RawMessage
	}{{"Service", state.Services}, {"EndpointSlice", state.Endpoints}} {
		for _, o := range l.objects {
			if err := r.add(at, o, l.kind, 0); err != nil {
				return nil, err
			}
		}
	}
	return r.finish(in.Name)
}

// jsonOf returns what a text of YAML says.
func jsonOf(at reader.Position, text []byte) ([]byte, error) {
	out, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, reader.ErrorAt(at, "it is no YAML: %s", source.Printable(strings.TrimPrefix(err.Error(), "yaml: ")))
	}
	return out, nil
}

func newManifestReader() *manifestReader {
	return &manifestReader{Result: &reader.Result{}, all: kubernetes.NewManifests(), texts: map[int]object{}, seen: map[source.Key]bool{}}
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

// add takes up an object, or all that a list has. A kind is that of objects that do not say it.
func (r *manifestReader) add(at reader.Position, text []byte, kind string, depth int) error {
	if bytes.Equal(bytes.TrimSpace(text), []byte("null")) {
		return nil // a document of comments
	}
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return reader.ErrorAt(at, "it is no object of Kubernetes: %s", source.Printable(err.Error()))
	}
	o.Kind = cmp.Or(o.Kind, kind)
	if strings.HasSuffix(o.Kind, "List") && depth < reader.MaxDepth {
		for _, item := range o.Items {
			if err := r.add(at, item, strings.TrimSuffix(o.Kind, "List"), depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if key := (source.Key{Namespace: cmp.Or(o.Metadata.Namespace, "default"), Name: o.Metadata.Name}); o.Kind == "Service" {
		if r.seen[key] {
			r.Note(at, "service "+source.Printable(key.String())+" is there already: the first one counts", "")
			return nil
		}
		r.seen[key] = true
	}
	known, err := r.all.Add(o.Kind, text, len(r.at))
	switch {
	case err != nil:
		return reader.ErrorAt(at, "%s", source.Printable(err.Error()))
	case !known:
		r.Note(at, "objects of kind "+source.Excerpt(o.Kind)+" are left out: they are no services", "")
	case o.Kind == "Service":
		r.texts[len(r.at)] = o
		r.at = append(r.at, at)
	}
	return nil
}

// finish makes services of all objects.
func (r *manifestReader) finish(file string) (*reader.Result, error) {
	for _, c := range r.all.Services() {
		at := r.at[c.ID]
		if c.Service == nil {
			for _, msg := range c.Notes {
				r.Note(at, "service "+source.Printable(c.Key.String())+": "+msg, "")
			}
			continue
		}
		if err := r.Grow(len(c.Ports) * len(c.Endpoints)); err != nil {
			return nil, reader.ErrorAt(at, "%s", err)
		}
		for i, svc := range reader.SplitPorts(c.Service) {
			s := r.Add(at, c.Key.Namespace, svc.Name)
			svc.Name = s.Name
			s.Service = svc
			reader.CommonTargets(svc)
			if i > 0 {
				continue
			}
			for _, msg := range c.Notes {
				s.Note(at, source.Printable(c.Key.String())+": "+msg, "")
			}
			annotations(s, at, r.texts[c.ID].Metadata.Annotations)
		}
	}
	r.KeepsPods(file)
	return r.Result, nil
}

// annotations notes what Cilium makes of annotations.
func annotations(s *reader.Service, at reader.Position, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, "service.cilium.io/") {
			s.Note(at, fmt.Sprintf("the annotation %s = %s is left out", source.Excerpt(key), source.Excerpt(all[key])), "see docs/moving.md")
		}
	}
}
