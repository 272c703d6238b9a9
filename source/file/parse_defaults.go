package file

import (
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
