package control

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Missing says which patterns of a selection mean none of some services; empty: each means some.
func Missing(which source.Selection, list []report.ServiceStatus) string {
	lost := slices.DeleteFunc(slices.Clone(which), func(pattern string) bool {
		one := source.Selection{pattern}
		return slices.ContainsFunc(list, func(s report.ServiceStatus) bool {
			return one.Matches(s.Key(), s.Labels)
		})
	})
	if len(lost) == 0 {
		return ""
	}
	return "no service is " + strings.Join(lost, ", or ")
}

// queryOf returns a Selection as SelectionOf reads it.
func queryOf(s source.Selection) url.Values {
	if len(s) == 0 {
		return nil
	}
	return url.Values{"name": s}
}

// SelectionOf returns the Selection of a question.
func SelectionOf(query url.Values) (source.Selection, error) {
	s := source.Selection(query["name"])
	return s, s.Check()
}

// orders are what services can be sorted by; where two are equal, by name.
var orders = map[string]func(a, b *report.ServiceStatus) int{
	"name":      func(*report.ServiceStatus, *report.ServiceStatus) int { return 0 },
	"addresses": func(a, b *report.ServiceStatus) int { return len(b.Frontends) - len(a.Frontends) },
	"endpoints": func(a, b *report.ServiceStatus) int { return len(b.Endpoints) - len(a.Endpoints) },
	"ready":     func(a, b *report.ServiceStatus) int { return readyShare(a) - readyShare(b) },
	"problems":  func(a, b *report.ServiceStatus) int { return idle(b) - idle(a) },
	"file":      func(a, b *report.ServiceStatus) int { return cmp.Compare(a.Unit, b.Unit) },
}

// SortKeys returns what services can be sorted by.
func SortKeys() []string { return slices.Sorted(maps.Keys(orders)) }

// SortServices sorts services: by most addresses, most endpoints, the least share of
// endpoints that are ready, most addresses that do not serve, file, or name.
func SortServices(list []report.ServiceStatus, key string) error {
	order, ok := orders[key]
	if !ok {
		return fmt.Errorf("unknown sort key %q; want %s", key, strings.Join(SortKeys(), ", "))
	}
	slices.SortStableFunc(list, func(a, b report.ServiceStatus) int {
		return cmp.Or(order(&a, &b), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// readyShare returns how many of a service's endpoints are ready, in thousandths; 0: it has none.
func readyShare(s *report.ServiceStatus) int {
	ready := 0
	for _, e := range s.Endpoints {
		switch e.State {
		case "ready", "up", "slow start", "backup":
			ready++
		}
	}
	return 1000 * ready / max(len(s.Endpoints), 1)
}

// idle returns how many of a service's addresses do not serve as they should.
func idle(s *report.ServiceStatus) (n int) {
	for _, f := range s.Frontends {
		if !f.Serves() {
			n++
		}
	}
	return n
}
