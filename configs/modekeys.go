package configs

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// refuseKeys returns the keys of a service that are written and that none of these modes can do.
// Those that stand for more than that, scheduler and forward, have functions of their own.
func refuseKeys(s *source.Service, modes []string) (list []source.Problem) {
	if s.SchedulerFlags != 0 {
		list = append(list, refuse(modes, canSchedule, "scheduler_flags", source.At("scheduler_flags"))...)
	}
	if s.OnePacket {
		list = append(list, refuse(modes, func(m Mode) bool { return m.OnePacket }, "one_packet", source.At("one_packet"))...)
	}
	if i := slices.IndexFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Extras().MaxConnections > 0 }); i >= 0 { // one of all is enough
		list = append(list, refuse(modes, func(m Mode) bool { return m.Limits }, "max_connections", source.At("endpoints", i, "max_connections"))...)
	}
	return list
}
