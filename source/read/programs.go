package read

import (
	"bytes"
	"context"
	"strings"

	"svcproxy.dev/svcproxy/internal/trust"
	"svcproxy.dev/svcproxy/source"
)

// The program of a check runs as root unless a setting says as whom. So only root may be able to change a file that
// names one (Rules.GuardPrograms), and the program itself, which the check looks at when it runs it.

// refusePrograms returns what is wrong with services of the file at path because others can change it. It looks at
// the file at most once, and not before a service has a program.
func (rules Rules) refusePrograms(path string) func(*source.Service) []source.Problem {
	var looked bool
	var why string
	return func(s *source.Service) []source.Problem {
		if !runsProgram(s) {
			return nil
		}
		if !looked {
			looked, why = true, rules.changeable(path)
		}
		if why == "" {
			return rules.warnOfProgram(s.HealthCheck.Command)
		}
		return []source.Problem{{
			Path: source.At("health_check", "command"),
			Msg:  noProgram + why,
			Hint: "let root alone change the file and every directory above it, or set exec_user in [health] of " + SettingsName,
		}}
	}
}

const noProgram = "svcproxy runs no program that this file names: "

// isOfFile reports whether a problem of a check is that its program must not run, whatever that is: others can change
// the file, or its share has no programs.
func isOfFile(p source.Problem) bool { return strings.HasPrefix(p.Msg, noProgram) }

// warnOfProgram warns of a program that does not run because others can change it. A daemon finds that when it runs it.
func (rules Rules) warnOfProgram(command []string) []source.Problem {
	if rules.Writer != nil || len(command) == 0 {
		return nil
	}
	why, err := trust.Writer(command[0])
	if err != nil {
		why = source.Excerpt(command[0]) + ": " + Reason(err)
	}
	if why == "" {
		return nil
	}
	return []source.Problem{{
		Path: source.At("health_check", "command"), Msg: "svcproxy cannot run this program on this host: " + why, Hint: "endpoints stay as they are", Warning: true,
	}}
}

// with returns a check of services that reports what either finds.
func with(check, more func(*source.Service) []source.Problem) func(*source.Service) []source.Problem {
	if check == nil {
		return more
	}
	return func(s *source.Service) []source.Problem { return append(check(s), more(s)...) }
}

func runsProgram(s *source.Service) bool {
	return s.HealthCheck != nil && s.HealthCheck.Type == source.CheckExec
}

// MayRunPrograms reports whether a text may hold a check that runs a program: what becomes of it depends on who can
// change the file, too. A name in it can be written with escapes.
func MayRunPrograms(text []byte) bool {
	return bytes.Contains(text, []byte(source.CheckExec.String())) || bytes.IndexByte(text, '\\') >= 0
}

// changeable says who besides root can change the file at path; empty: nobody.
func (rules Rules) changeable(path string) string {
	look := trust.Writer
	if rules.Writer != nil {
		look = rules.Writer
	}
	why, err := look(path)
	if err != nil {
		return "it is not known who can change it: " + Reason(err)
	}
	return why
}

// refuseAccepted is refusePrograms of a text of a server that was accepted: one that names a program was signed, and the
// settings of now must allow it.
func (rules Rules) refuseAccepted(path string) func(*source.Service) []source.Problem {
	rules.From.Accepted, rules.From.Signed = false, true
	return func(s *source.Service) (r []source.Problem) {
		if !runsProgram(s) {
			return nil
		}
		sh, unowned := rules.shareOf(path)
		if unowned != nil {
			return []source.Problem{{Msg: noProgram + unowned.Msg}}
		}
		if why, _ := sh.forbids(mayExec); why != "" {
			return []source.Problem{{Msg: noProgram + why}}
		}
		return nil
	}
}

// ParseCopy is ParseNew of a text that was accepted before. Where others can change the file, or its server has no
// permission any more, its services are as they were, and their programs do not run.
func (rules Rules) ParseCopy(ctx context.Context, path string, data []byte, before KnownServices) ([]*source.Service, []source.Fault, KnownServices) {
	unguarded := rules
	unguarded.GuardPrograms = false
	services, faults, known := unguarded.ParseNew(ctx, path, data, before)
	refuse := rules.refusePrograms(path)
	switch {
	case rules.From.URL != "":
		refuse = rules.refuseAccepted(path)
	case !rules.GuardPrograms:
		return services, faults, known
	}
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
			if rules.From.URL != "" { // the same text is another version once its program may run
				faults = append(faults, source.Fault{Pos: s.Pos, Msg: c.Barred, Warning: true})
			}
		}
		out := *s
		out.HealthCheck = check
		services[i] = &out
	}
	return services, faults, known
}
