package file

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"svcproxy/source"
	"svcproxy/source/decode"
)

// Parse reads the text of a service file: JSON when path ends in .json, else
// TOML. It returns every fault of it; unless all are warnings it returns no
// services. A text without the key services, be it empty or all comments, is at
// fault: it may be cut off, and stale services are better than none. Whoever
// wants none says services = [].
func Parse(path string, data []byte) ([]*source.Service, []source.Fault) {
	return Rules{}.Parse(path, data)
}

// Parse is Parse under these rules.
func (rules Rules) Parse(path string, data []byte) ([]*source.Service, []source.Fault) {
	services, faults, _ := rules.parseNew(context.Background(), path, data, nil)
	return services, faults
}

// parseNew is Parse of a file of which some services are known. It returns all
// that are known of it then.
func (rules Rules) parseNew(ctx context.Context, path string, data []byte, before known) ([]*source.Service, []source.Fault, known) {
	return rules.parse(ctx, path, data, filepath.Ext(path) == ".json", before)
}

func (rules Rules) parse(ctx context.Context, path string, data []byte, isJSON bool, before known) ([]*source.Service, []source.Fault, known) {
	limits := rules.Limits.orDefault()
	switch {
	case len(data) == 0:
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty", Hint: noServices}}, nil
	case len(data) > limits.FileSize:
		return nil, []source.Fault{tooLarge(path, limits.FileSize)}, nil
	}
	if services, faults, now, ok := rules.inPieces(ctx, path, data, isJSON, before); ok {
		return services, faults, now
	}
	services, faults := rules.whole(path, data, isJSON)
	return services, faults, nil
}

// whole reads a file in one go, and says everything that is wrong with it.
func (rules Rules) whole(path string, data []byte, isJSON bool) ([]*source.Service, []source.Fault) {
	parse := decode.TOML
	if isJSON {
		parse = decode.JSON
	}
	doc, faults := parse(path, data)
	if doc == nil {
		return nil, faults
	}
	p := rules.reading()
	p.pos = doc.Elements("services")
	p.file(doc.Root, isJSON)
	faults = append(faults, p.r.Faults(doc)...)
	if broken(faults) {
		return nil, faults
	}
	place(doc, p.services, source.At("services"))
	return p.services, faults
}

func broken(faults []source.Fault) bool {
	return slices.ContainsFunc(faults, func(f source.Fault) bool { return !f.Warning })
}

const noServices = "write services = [] for a file without services"

// schemaKey names the JSON Schema of a file for editors. In TOML they look for
// the comment "#:schema", so it is a key of JSON only.
const schemaKey = "$schema"

type reading struct {
	r        *decode.Reader
	check    func(*source.Service) []source.Problem // besides source.Validate; nil: nothing
	pos      []source.Position                      // of the services
	services []*source.Service
	schema   string // not used
}

func (rules Rules) reading() *reading {
	p := &reading{r: decode.NewReader(nil), check: rules.Check}
	rules.set(p.r)
	return p
}

// set makes r read as the rules say.
func (rules Rules) set(r *decode.Reader) {
	r.Hint = keyHint
	rules.Limits.orDefault().set(r)
}

// file reads the root of a service file.
func (p *reading) file(root map[string]any, isJSON bool) {
	fields := []decode.Field[reading]{{Key: "services", Read: readServices}}
	if isJSON && root[schemaKey] != nil { // so that no message tells of it
		fields = append(fields, decode.Key(schemaKey, decode.Text, func(p *reading) *string { return &p.schema }))
	}
	if _, ok := root["services"]; !ok {
		all := len(root)
		if root = p.headless(root); len(root) == all && !isMisspelt(root) {
			p.r.Fault(`key "services" is missing`, missingHint(root))
		}
	}
	decode.Table(p.r, root, fields, p)
}

func readServices(r *decode.Reader, v any, p *reading) {
	if _, ok := v.(map[string]any); ok {
		r.Fault("services is a table", "want a list of tables: write [[services]]")
		return
	}
	decode.Each(r, v, func(i int, v any) {
		var pos source.Position
		if i < len(p.pos) {
			pos = p.pos[i]
		}
		p.service(v, pos)
	})
}

// service reads one service.
func (p *reading) service(v any, pos source.Position) {
	s := service{Service: source.Service{Key: source.Key{Namespace: "default"}, Pos: pos}}
	if !decode.Table(p.r, v, serviceFields, &s) || p.r.Failed() && p.r.Full() {
		return
	}
	out := s.finish(p.r, p.check)
	if !p.r.Failed() { // else none is used
		p.services = append(p.services, out)
	}
}

// finish makes the service of what was read of it, and checks it.
func (s *service) finish(r *decode.Reader, check func(*source.Service) []source.Problem) *source.Service {
	if s.clientIP {
		s.Affinity = cmp.Or(s.timeout, defaultAffinity)
	}
	s.setEndpoints(r)
	problems := source.Validate(&s.Service)
	if check != nil {
		problems = append(problems, check(&s.Service)...)
	}
	for _, p := range problems {
		r.Problem(p)
	}
	if !slices.ContainsFunc(problems, func(p source.Problem) bool { return !p.Warning }) {
		s.warn(r)
	}
	out := s.Service
	return &out
}

// setEndpoints takes the endpoints over, with their port put under its name.
func (s *service) setEndpoints(r *decode.Reader) {
	if len(s.endpoints) == 0 {
		return
	}
	s.Endpoints = make([]source.Endpoint, len(s.endpoints))
	var last map[string]uint16
	for i, e := range s.endpoints {
		if e.port != 0 {
			e.Ports = s.onePort(r, i, e, last)
		}
		// Services are never changed, so endpoints that are alike share one map.
		if last == nil || !maps.Equal(last, e.Ports) {
			last = e.Ports
		}
		if e.Ports != nil {
			e.Ports = last
		}
		s.Endpoints[i] = e.Endpoint
	}
}

// onePort returns the port of an endpoint under the name of the one port of the
// service: last, if that is the same.
func (s *service) onePort(r *decode.Reader, i int, e endpoint, last map[string]uint16) map[string]uint16 {
	at := source.At("endpoints", i, "port")
	switch {
	case e.Ports != nil:
		r.Problem(source.Problem{Path: at, Msg: "the endpoint has both port and ports", Hint: "leave one out"})
		return e.Ports
	case len(s.Ports) > 1:
		r.Problem(source.Problem{Path: at, Msg: "the endpoint has a port, and the service has several", Hint: "write ports = { name = number }"})
		return nil
	case len(s.Ports) == 0:
		return nil
	}
	name := s.Ports[0].Name
	if n, ok := last[name]; ok && n == e.port && len(last) == 1 {
		return last
	}
	return map[string]uint16{name: e.port}
}

func readEndpoints(r *decode.Reader, v any, s *service) {
	s.listed = true
	decode.Each(r, v, func(_ int, v any) {
		e := endpoint{Endpoint: source.Endpoint{Weight: 1, Ready: true, Serving: true}}
		if text, ok := v.(string); ok {
			e.Addr, e.port = endpointAddr(r, text)
		} else if _, ok := v.(map[string]any); ok {
			decode.Table(r, v, endpointFields, &e)
		} else {
			decode.Addr.Read(r, v)
		}
		s.endpoints = append(s.endpoints, e)
	})
}

// endpointAddr reads "address", "address:port" and "[address]:port".
func endpointAddr(r *decode.Reader, text string) (netip.Addr, uint16) {
	host, number := text, ""
	var err error
	if strings.Contains(text, "]:") || strings.Count(text, ":") == 1 {
		host, number, err = net.SplitHostPort(text)
	}
	if err != nil || host == text {
		a, _ := decode.Addr.Read(r, text)
		return a, 0
	}
	a, ok := decode.Addr.Read(r, host)
	port, err := strconv.ParseUint(number, 10, 16)
	if ok && (err != nil || port == 0) {
		r.Fault(source.Excerpt(text)+" has port "+source.Excerpt(number), "want 1 to 65535")
	}
	return a, uint16(port)
}
