package daemon

import (
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// Rules returns what service files are held to under settings. Where auto leaves
// the mode open, a file may ask for what any mode of this build can do.
func Rules(s configs.Settings) file.Rules {
	names := []string{s.Mode}
	if s.Mode == configs.Auto {
		names = nil
		for _, m := range available {
			names = append(names, m.Name)
		}
	}
	inMode := hold(s, func() []string { return names })
	check := func(svc *source.Service) []source.Problem { return append(inMode(svc), s.WarnOfAnnounce(svc)...) }
	if s.Mode == configs.Auto {
		check = warnOfModes(check, names)
	}
	return file.Rules{Limits: s.Limits, Check: check}
}

// warnOfModes adds warnings of what one of the modes that auto may take cannot do,
// the first of them.
func warnOfModes(check func(*source.Service) []source.Problem, names []string) func(*source.Service) []source.Problem {
	return func(svc *source.Service) []source.Problem {
		problems := check(svc)
		for _, name := range names {
			refused := configs.Refuse(svc, name)
			if len(refused) == 0 || len(problems) > 0 {
				continue
			}
			for _, p := range refused {
				p.Warning, p.Hint = true, "mode = \"auto\" may take that mode, which refuses the file"
				problems = append(problems, p)
			}
		}
		return problems
	}
}

// rulesInUse returns what service files are held to in the mode that is in use.
func rulesInUse(w *settingsWatcher, sw *modeSwitch) file.Rules {
	check := hold(w.fixed, func() []string { return []string{sw.current().Name} })
	return file.Rules{Limits: w.fixed.Limits, Check: func(svc *source.Service) []source.Problem {
		now := w.current()
		return append(check(svc), now.WarnOfAnnounce(svc)...)
	}}
}

// hold returns what holds services to what modes can do.
func hold(s configs.Settings, names func() []string) func(*source.Service) []source.Problem {
	return func(svc *source.Service) []source.Problem {
		modes := names()
		return append(configs.Refuse(svc, modes...), s.Warn(svc, modes...)...)
	}
}
