package read

import (
	"context"

	"svcproxy.dev/svcproxy/source"
)

// ParseCopy is ParseNew of a text that was accepted before. Where others can change the file, its services are as
// they were, and their programs do not run.
func (rules Rules) ParseCopy(ctx context.Context, path string, data []byte, before KnownServices) ([]*source.Service, []source.Fault, KnownServices) {
	unguarded := rules
	unguarded.GuardPrograms = false
	services, faults, known := unguarded.ParseNew(ctx, path, data, before)
	if !rules.GuardPrograms {
		return services, faults, known
	}
	refuse := rules.refusePrograms(path)
	barred := map[*source.HealthCheck]*source.HealthCheck{} // services share checks
	for i, s := range services {
		problems := refuse(s)
		if len(problems) == 0 {
			continue
		}
		check := barred[s.HealthCheck]
		if check == nil {
			c := *s.HealthCheck
			c.Barred = problems[0].Msg
			check, barred[s.HealthCheck] = &c, &c
		}
		out := *s
		out.HealthCheck = check
		services[i] = &out
	}
	return services, faults, known
}
