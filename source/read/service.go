package read

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A reading is what is read of one service file, and the defaults and checks that its services share.
type reading struct {
	r        *decode.Reader
	check    func(*source.Service) []source.Problem // besides source.Validate; nil: nothing
	pos      []source.Position                      // of the services
	services []*source.Service
	products source.Products // of all services
	limits   source.Products
	over     bool // products are more than the limits, and nothing is read any more
	defaults defaults

	writtenAt map[*source.Service][]int // which element of ports says each port, where one says several

	checks map[[sha256.Size]byte]*source.HealthCheck // of all services, by the checksum of what they are
	shared map[*source.HealthCheck]bool              // those of checks
	text   []byte                                    // room for that of a check
}

// newReading returns one of a file of which nothing is read yet, from path on.
func (rules Rules) newReading(path source.Path) *reading {
	return &reading{r: rules.newReader(path), check: rules.Check, writtenAt: make(map[*source.Service][]int), limits: rules.Limits.Products()}
}

// newReader returns a Reader that stands at path, and reads as the rules say.
func (rules Rules) newReader(path source.Path) *decode.Reader {
	r := decode.NewReader(path)
	r.Hint = keyHint
	rules.Limits.orDefault().set(r)
	return r
}

// readRoot reads the root of a service file.
func (p *reading) readRoot(root map[string]any, isJSON bool) {
	fields := []decode.Field[reading]{{Key: defaultsKey, Read: readDefaults}, {Key: "services", Read: readServices}} // services need the defaults
	if isJSON && root[schemaKey] != nil {                                                                            // so that no message tells of it
		fields = append(fields, decode.Field[reading]{Key: schemaKey, Read: checkSchema})
	}
	if _, ok := root["services"]; !ok {
		all := len(root)
		if root = reportKeysAtRoot(p.r, root); len(root) == all && !isMisspelt(root) {
			p.r.Fault(`key "services" is missing`, missingHint(root))
		}
	}
	decode.Table(p.r, root, fields, p)
}

// checkSchema takes any string: what it names is for editors.
func checkSchema(r *decode.Reader, v any, _ *reading) { decode.Text.Read(r, v) }

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
	s := standardService
	s.Pos = pos
	if p.over || !decode.Table(p.r, v, serviceFields, &s) || p.r.Failed() && p.r.Full() {
		return
	}
	table, _ := v.(map[string]any)
	p.defaults.give(&s, table)
	if !p.count(&s) {
		return
	}
	s.Ports = s.written.ports(p.r)
	if s.listed && s.EndpointsFrom != "" {
		p.r.Problem(source.Problem{Path: source.At("endpoints_from"), Msg: "the service has both endpoints and endpoints_from", Hint: "leave one out"})
	}
	if s.EndpointsFrom != "" {
		s.WrittenPorts, s.Inherited = s.written.save(), s.inherited
	}
	out := s.finish(p)
	if p.r.Failed() { // none is used
		return
	}
	p.services = append(p.services, out)
	if s.written.at != nil {
		p.writtenAt[out] = s.written.at
	}
}

// count adds what a service is multiplied to, and reports false where that is more than a file may have. Then its
// ports are not made, and nothing more of the file is read.
func (p *reading) count(s *service) bool {
	var endpoints source.EndpointCount
	for i := range s.endpoints {
		endpoints.Add(&s.endpoints[i].Endpoint)
	}
	ports, nodePorts := s.written.count()
	p.products = p.products.Plus(s.ProductsOf(ports, nodePorts, endpoints))
	problem := p.limits.Exceeded(p.products, source.OfFile)
	if problem == nil {
		return true
	}
	p.over = true
	p.r.FaultAt(problem.Path, problem.Msg, problem.Hint)
	return false
}

// finish makes the service of what was read of it, and checks it.
func (s *service) finish(p *reading) *source.Service {
	problems := p.defaults.aboutDefaults(s, p.complete(s))
	for _, problem := range problems {
		p.r.Problem(problem)
	}
	if !anyFatal(problems) {
		s.warn(p.r)
	}
	out := s.Service
	return &out
}

// complete sets what is not written of a service, and returns what is wrong with it.
func (p *reading) complete(s *service) []source.Problem {
	if s.clientIP {
		s.Affinity = cmp.Or(s.timeout, defaultAffinity)
	}
	if s.Scheduler == source.Maglev {
		s.HashOn = cmp.Or(s.HashOn, source.ClientIPPort)
	}
	if s.check != nil && !s.check.none && s.HealthCheck == nil {
		s.HealthCheck = p.share(&s.check.HealthCheck)
	}
	s.setTunnel()
	s.setEndpoints(p.r)
	return s.validate(p.check)
}

// validate returns what is wrong with the service, by itself and, unless check is nil, on this host.
func (s *service) validate(check func(*source.Service) []source.Problem) []source.Problem {
	problems := source.ValidateWritten(&s.Service, s.written.at)
	if check == nil {
		return problems
	}
	for _, p := range check(&s.Service) {
		p.Path = asWritten(p.Path, s.written.at)
		problems = append(problems, p)
	}
	return problems
}

// setTunnel sets what is not written of a tunnel.
func (s *service) setTunnel() {
	if s.Forward.Method == source.ForwardTunnel {
		s.Forward.Tunnel = cmp.Or(s.Forward.Tunnel, source.IPIP)
	}
	if s.Forward.Tunnel == source.GUE {
		s.Forward.Port = cmp.Or(s.Forward.Port, source.GUEPort)
	}
}

// setEndpoints takes the endpoints over, with their port put under its name.
func (s *service) setEndpoints(r *decode.Reader) {
	if len(s.endpoints) == 0 {
		return
	}
	s.Endpoints = make([]source.Endpoint, len(s.endpoints))
	var last map[string]uint16
	for i, e := range s.endpoints {
		if e.Port != 0 {
			e.Ports = s.onePort(r, i, e, last)
		} else {
			e.Ports = s.written.of(r, i, e.Ports)
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
// service, or of its one port of several protocols: last, if that is the same.
func (s *service) onePort(r *decode.Reader, i int, e endpoint, last map[string]uint16) map[string]uint16 {
	at := func() source.Path { return source.At("endpoints", i, "port") }
	switch {
	case e.Ports != nil:
		r.Problem(source.Problem{Path: at(), Msg: "the endpoint has both port and ports", Hint: "leave one out"})
		return e.Ports
	case len(s.written.list) > 1:
		r.Problem(source.Problem{Path: at(), Msg: "the endpoint has a port, and the service has several", Hint: "write ports = { name = number }"})
		return nil
	case len(s.written.list) == 1 && !s.written.list[0].numbers.one():
		r.Problem(source.Problem{Path: at(), Msg: "the endpoint has a port, and the service a range of them", Hint: "leave it out: endpoints serve each port by its own number"})
		return nil
	}
	if len(last) == len(s.Ports) && !slices.ContainsFunc(s.Ports, func(p source.Port) bool { return last[p.Name] != e.Port }) {
		return last
	}
	ports := make(map[string]uint16, len(s.Ports))
	for _, p := range s.Ports {
		ports[p.Name] = e.Port
	}
	return ports
}

func anyFatal(problems []source.Problem) bool {
	return slices.ContainsFunc(problems, func(p source.Problem) bool { return !p.Warning })
}

// readDefaults reads [defaults] of a file.
func readDefaults(r *decode.Reader, v any, p *reading) {
	d := &p.defaults
	d.said = make(map[string]bool)
	if !decode.Table(r, v, defaultFields, &d.service) {
		return
	}
	table, _ := v.(map[string]any)
	d.note(table)
	d.readCheck(r, p.share)
	p.checkDefaults(r)
}

// checkDefaults reports what is wrong with all of [defaults], once for all services. Of the check it is that its program
// must not run: what else is wrong with it by itself is reported where it is read.
func (p *reading) checkDefaults(r *decode.Reader) {
	s := p.defaults.typical()
	for _, problem := range p.complete(s) {
		if key := s.inheritedKey(&problem); key != "" && (key != checkKey || isOfFile(problem)) {
			p.defaults.said[problem.Msg] = true
			r.Problem(problem)
		}
	}
}

// share returns the one check of those that are equal: checks are never changed.
func (p *reading) share(c *source.HealthCheck) *source.HealthCheck {
	if p.shared[c] {
		return c
	}
	p.text = fmt.Appendf(p.text[:0], "%#v", *c)
	sum := sha256.Sum256(p.text)
	if p.checks[sum] == nil {
		if p.checks == nil {
			p.checks, p.shared = map[[sha256.Size]byte]*source.HealthCheck{}, map[*source.HealthCheck]bool{}
		}
		p.checks[sum], p.shared[c] = c, true
	}
	return p.checks[sum]
}
