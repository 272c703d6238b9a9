package sources

import (
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Rules returns what service files are held to under settings. Where auto leaves the mode open, a file
// may ask for what any mode of this build can do, with a warning that names the modes that refuse it.
func Rules(s configs.Settings) read.Rules {
	names := []string{s.Mode}
	if s.Mode == configs.Auto {
		names = nil
		for _, m := range modes.All {
			names = append(names, m.Name)
		}
	}
	inMode := Hold(s, func() []string { return names })
	check := func(svc *source.Service) []source.Problem { return append(inMode(svc), s.WarnOfAnnounce(svc)...) }
	rules := read.Rules{Limits: s.Limits, Check: check, Owners: func() []read.Owner { return s.Owners }}
	if s.Mode == configs.Auto {
		rules.Check = func(svc *source.Service) []source.Problem {
			return append(check(svc), configs.WarnOfModes(svc, names...)...)
		}
	}
	return rules
}

// Supported returns which of the settings this build cannot do.
func Supported(s configs.Settings) error {
	if err := supportedSources(s); err != nil || s.Mode == configs.Auto {
		return err
	}
	_, err := modes.Named(s.Mode)
	return err
}

// RulesInUse returns what service files are held to in the mode that is in use.
func RulesInUse(w *settings.Watcher, sw *modeswitch.Switch) read.Rules {
	check := Hold(w.Fixed, func() []string { return []string{sw.Current().Name} })
	return read.Rules{
		Limits: w.Fixed.Limits, GuardPrograms: w.Fixed.Health.ExecUser == "", Owners: func() []read.Owner { return w.Current().Owners },
		Check: func(svc *source.Service) []source.Problem {
			now := w.Current()
			return append(check(svc), now.WarnOfAnnounce(svc)...)
		},
	}
}

// Hold returns what holds services to what modes can do.
func Hold(s configs.Settings, names func() []string) func(*source.Service) []source.Problem {
	return func(svc *source.Service) []source.Problem {
		in := names()
		return append(configs.Refuse(svc, in...), s.Warn(svc, in...)...)
	}
}
