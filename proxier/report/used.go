package report

import (
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A usedService is a service as the families resolved it.
type usedService struct {
	policy.Subject
	unit     string
	families []inFamily // as Snapshot.Syncs
}

// inFamily is a service in one family.
type inFamily struct {
	*policy.Resolved // nil: the family has not got to it yet
	*Family
}

// action returns what the kernel does with what is sent to a frontend, and how many endpoints get new connections.
func (r inFamily) action(f *policy.Frontend) (action string, targets int) {
	if action, targets = kernelAction(f, r.Unserved); !r.holdsFrontend(r.Key, f) {
		action = pending
	}
	return action, targets
}

// pending is the action of a frontend while the kernel is not known to hold it.
const pending = "pending"

// used returns the services that match accepts, in no order; nil: all.
func used(s *Snapshot, match func(*source.Service) bool) (list []usedService) {
	if match == nil {
		list = make([]usedService, 0, len(s.Services))
	}
	for _, svc := range s.Services {
		if match == nil || match(svc.Service) {
			list = append(list, usedService{Subject: svc.Subject, unit: svc.Unit.Name})
		}
	}
	n := len(s.Syncs)
	at, all := make(map[source.Key]int, len(list)), make([]inFamily, n*len(list))
	for i := range list {
		at[list[i].Key], list[i].families = i, all[i*n:(i+1)*n]
		for f := range s.Syncs {
			list[i].families[f].Family = &s.Syncs[f]
		}
	}
	for f := range s.Syncs {
		for _, r := range s.Syncs[f].Resolved {
			if i, wanted := at[r.Key]; wanted {
				list[i].families[f].Resolved = r
			}
		}
	}
	return list
}

// usedByName is used in order of their names.
func usedByName(s *Snapshot, match func(*source.Service) bool) []usedService {
	list := used(s, match)
	slices.SortFunc(list, func(a, b usedService) int { return a.Key.Compare(b.Key) })
	return list
}

// writtenAt returns where a service is written; empty: that is not known.
func writtenAt(svc *source.Service) string {
	if svc.Pos.File == "" {
		return ""
	}
	return svc.Pos.String()
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
