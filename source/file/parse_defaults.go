package file

import (
	"crypto/sha256"
	"fmt"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// defaults are what [defaults] of a file says of all its services.
type defaults struct {
	check *source.HealthCheck // of services that say nothing; nil: none
	said  map[string]bool     // messages about check itself
}

// defaultsKey is their table at the root.
const defaultsKey = "defaults"

// defaultFields are the keys of [defaults].
var defaultFields = []decode.Field[defaults]{
	{Key: "health_check", Schema: healthCheck.Schema, Read: readDefaultCheck},
}

func readDefaultCheck(r *decode.Reader, v any, d *defaults) {
	c, _ := healthCheck.Read(r, v)
	if c.none {
		r.Problem(source.Problem{Path: source.At("type"), Msg: `type = "none" in [defaults] does nothing`, Hint: "it switches a default off, in a service", Warning: true})
		return
	}
	d.check, d.said = &c.HealthCheck, map[string]bool{}
	for _, p := range source.ValidateCheck(d.check) {
		d.said[p.Msg] = true
		r.Problem(p)
	}
}

// readDefaults reads [defaults] of a file.
func readDefaults(r *decode.Reader, v any, p *reading) {
	decode.Table(r, v, defaultFields, &p.defaults)
	if p.defaults.check != nil {
		p.defaults.check = p.share(p.defaults.check)
	}
}

// chunkDefaults reads [defaults] of a file that is read in chunks. It returns false where there is
// something to say of it, which takes reading the file as a whole.
func (p *reading) chunkDefaults(rules Rules, v any) bool {
	if v == nil {
		return true
	}
	r := decode.NewReader(source.At(defaultsKey))
	rules.set(r)
	readDefaults(r, v, p)
	return len(r.Faults(nil)) == 0
}

// mixed returns the checksum of a service that is read with such defaults: with others
// it is another service.
func mixed(text []byte, defaults any) [sha256.Size]byte {
	sum := sha256.Sum256(text)
	if defaults == nil {
		return sum
	}
	for i, b := range sha256.Sum256(fmt.Appendf(nil, "%#v", defaults)) {
		sum[i] ^= b
	}
	return sum
}

// setCheck sets the health check of a service: its own, else the default.
func (p *reading) setCheck(s *service) {
	switch {
	case s.check == nil:
		s.HealthCheck, s.byDefault = p.defaults.check, p.defaults.check != nil
	case !s.check.none:
		s.HealthCheck = p.share(&s.check.HealthCheck)
	}
}

// aboutDefault returns what is wrong with a service that has the default check. What is wrong with
// that itself has been said where it stands.
func (d *defaults) aboutDefault(problems []source.Problem) (left []source.Problem) {
	for _, p := range problems {
		if !p.Path.Under(source.At("health_check")) {
			left = append(left, p)
		} else if !d.said[p.Msg] {
			p.Path, p.Hint = nil, `it is that of [defaults]: write a health_check of the service, type = "none" for no check`
			left = append(left, p)
		}
	}
	return left
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

// shareKnown makes services share checks with those of before.
func (p *reading) shareKnown(before knownServices) {
	for _, m := range before {
		if m.service.HealthCheck != nil {
			p.share(m.service.HealthCheck)
		}
	}
}
