package file

import "svcproxy.dev/svcproxy/source"

// To the guard what is disabled is as if it were not there: it leaves the kernel as what is
// deleted does.

// enabled returns how many services of the file are in use.
func (f *state) enabled() (n int) {
	if f.good == nil {
		return 0
	}
	for _, s := range f.good.Services {
		if !s.Disabled {
			n++
		}
	}
	return n
}

// enabledEndpoints returns how many endpoints of a service are not disabled.
func enabledEndpoints(s *source.Service) (n int) {
	for i := range s.Endpoints {
		if !s.Endpoints[i].Disabled {
			n++
		}
	}
	return n
}
