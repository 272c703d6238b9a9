package file

import (
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
	parse := decode.TOML
	if filepath.Ext(path) == ".json" {
		parse = decode.JSON
	}
	if len(data) == 0 {
		return nil, []source.Fault{{Pos: source.Position{File: path}, Msg: "the file is empty", Hint: noServices}}
	}
	doc, faults := parse(path, data)
	if doc == nil {
		return nil, faults
	}
	p := reading{r: decode.NewReader(nil), pos: doc.Elements("services")}
	p.file(doc.Root)
	faults = append(faults, p.r.Faults(doc)...)
	if slices.ContainsFunc(faults, func(f source.Fault) bool { return !f.Warning }) {
		return nil, faults
	}
	return p.services, faults
}

const noServices = "write services = [] for a file without services"

type reading struct {
	r        *decode.Reader
	pos      []source.Position // of the services
	services []*source.Service
}

// file reads the root of a service file.
func (p *reading) file(root map[string]any) {
	fields := []decode.Field[reading]{{Key: "services", Read: readServices}}
	if _, ok := root["services"]; !ok {
		p.r.Fault(`key "services" is missing`, noServices)
	}
	decode.Table(p.r, root, fields, p)
}

func readServices(r *decode.Reader, v any, p *reading) {
	if _, ok := v.(map[string]any); ok {
		r.Fault("services is a table", "want a list of tables: write [[services]]")
		return
	}
	decode.Each(r, v, func(i int, v any) {
		s := service{Service: source.Service{Key: source.Key{Namespace: "default"}}}
		if i < len(p.pos) {
			s.Pos = p.pos[i]
		}
		if decode.Table(r, v, serviceFields, &s) {
			p.services = append(p.services, s.finish(r))
		}
	})
}

// finish makes the service of what was read of it, and checks it.
func (s *service) finish(r *decode.Reader) *source.Service {
	switch {
	case s.clientIP && s.timeout == 0:
		s.Affinity = defaultAffinity
	case s.clientIP:
		s.Affinity = s.timeout
	case s.timeout != 0:
		r.Problem(source.Problem{
			Path: source.At("session_affinity_timeout"), Msg: "session_affinity_timeout does nothing",
			Hint: `it needs session_affinity = "client_ip"`, Warning: true,
		})
	}
	s.setEndpoints(r)
	for _, p := range source.Validate(&s.Service) {
		r.Problem(p)
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

// port reads one port of a service.
func port(r *decode.Reader, v any) (source.Port, bool) {
	p := source.Port{Protocol: source.TCP}
	ok := decode.Table(r, v, portFields, &p)
	if p.TargetPort == 0 {
		p.TargetPort = p.Port
	}
	return p, ok
}

func readEndpoints(r *decode.Reader, v any, s *service) {
	decode.Each(r, v, func(_ int, v any) {
		e := endpoint{Endpoint: source.Endpoint{Weight: 1, Ready: true, Serving: true}}
		if text, ok := v.(string); ok {
			e.Addr, e.port = endpointAddr(r, text)
		} else if _, ok := v.(map[string]any); ok {
			decode.Table(r, v, endpointFields, &e)
		} else {
			decode.Addr(r, v)
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
		a, _ := decode.Addr(r, text)
		return a, 0
	}
	a, ok := decode.Addr(r, host)
	port, err := strconv.ParseUint(number, 10, 16)
	if ok && (err != nil || port == 0) {
		r.Fault(source.Excerpt(text)+" has port "+source.Excerpt(number), "want 1 to 65535")
	}
	return a, uint16(port)
}

// nodeName reads the name of a node. Like host names everywhere, it is the same
// in either case; node_name is taken in lower case too.
func nodeName(r *decode.Reader, v any) (string, bool) {
	s, ok := decode.Text(r, v)
	return strings.ToLower(s), ok
}
