// Package sourcetest makes services that differ in one place, for tests of what must look at every field.
package sourcetest

import (
	"svcproxy.dev/svcproxy/internal/structtest"
	"svcproxy.dev/svcproxy/source"
)

// Filled is structtest.Filled of a service, whose endpoint has extras.
func Filled() *source.Service { return with(structtest.Filled[source.Extras]()) }

func with(x *source.Extras) *source.Service {
	s := structtest.Filled[source.Service]()
	s.Endpoints[0] = s.Endpoints[0].With(*x)
	return s
}

// Changes is structtest.Changes of a service, and of the extras of its endpoint.
func Changes() map[string]*source.Service {
	all := structtest.Changes[source.Service]()
	for _, s := range all {
		for i := range s.Endpoints {
			s.Endpoints[i] = s.Endpoints[i].With(*structtest.Filled[source.Extras]())
		}
	}
	for path, x := range structtest.Changes[source.Extras]() {
		all[".Endpoints[0]"+path] = with(x)
	}
	return all
}
