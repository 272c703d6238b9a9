package daemon

import (
	"svcproxy/configs"
	"svcproxy/source"
	"svcproxy/source/file"
)

// Rules returns what service files are held to under settings. Where auto leaves
// the mode open, a file may ask for what any mode of this build can do.
func Rules(s configs.Settings) file.Rules {
	names := []string{s.Mode}
	if s.Mode == auto {
		names = nil
		for _, m := range modes {
			if m.open != nil {
				names = append(names, m.name)
			}
		}
	}
	return file.Rules{Limits: file.Limits(s.Limits), Check: hold(s, func() []string { return names })}
}

// rules returns what service files are held to in the mode that is in use.
func (d *daemon) rules() file.Rules {
	return file.Rules{Limits: file.Limits(d.fixed.Limits), Check: hold(d.fixed, func() []string {
		d.mu.Lock()
		defer d.mu.Unlock()
		return []string{d.kernel.mode}
	})}
}

// hold returns what holds services to what modes can do.
func hold(s configs.Settings, modes func() []string) func(*source.Service) []source.Problem {
	return func(svc *source.Service) []source.Problem {
		names := modes()
		return append(configs.Refuse(svc, names...), s.Warn(svc, names...)...)
	}
}
