package configs

import (
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// refuseKeys returns the keys of a service that are written and that none of these modes can do.
// Those that stand for more than that, scheduler and forward, have functions of their own.
func refuseKeys(s *source.Service, modes []string) (list []source.Problem) {
	refuse := func(can func(Mode) bool, key string, at source.Path) {
		if slices.ContainsFunc(modes, func(mode string) bool { return can(modeNamed(mode)) }) {
			return
		}
		list = append(list, source.Problem{
			Path: at, Msg: fmt.Sprintf("%s is for %s mode, and this is %s mode", key, able(can), source.Either(modes)), Hint: "leave it out",
		})
	}
	if s.SchedulerFlags != 0 {
		refuse(canSchedule, "scheduler_flags", source.At("scheduler_flags"))
	}
	if s.OnePacket {
		refuse(func(m Mode) bool { return m.OnePacket }, "one_packet", source.At("one_packet"))
	}
	if i := slices.IndexFunc(s.Endpoints, func(e source.Endpoint) bool { return e.MaxConnections > 0 }); i >= 0 { // one of all is enough
		refuse(func(m Mode) bool { return m.Limits }, "max_connections", source.At("endpoints", i, "max_connections"))
	}
	return list
}
