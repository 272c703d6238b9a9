package statuspage

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// serviceOf returns the row of a service, with up to most addresses and endpoints. If there are more, those that do not work
// come first.
func serviceOf(st report.ServiceStatus, most int, now time.Time) service {
	s := service{ServiceStatus: st, To: serviceLink(st.Key().String(), true).To, File: cmp.Or(st.Place, st.Unit), Counted: st.Traffic != nil}
	for _, key := range slices.Sorted(maps.Keys(st.Labels)) {
		s.Labels = append(s.Labels, key+"="+st.Labels[key])
	}
	if s.Counted {
		s.Rate, s.Active = fmt.Sprintf("%.1f", st.Traffic.ConnectionRate), int(st.Traffic.Active)
	}
	if len(st.Frontends) == 0 {
		s.NoAddresses = control.NoAddress(st)
	}
	serves := func(f report.FrontendStatus) int { return toInt(f.Serves()) }
	frontends := worstFirst(report.Runs(st.Frontends), most, serves)
	frontends, s.MoreAddr = cut(frontends, most)
	for _, f := range frontends {
		s.Addresses = append(s.Addresses, address{f, !f.Serves(), control.ActionOf(f)})
	}
	endpoints := worstFirst(st.Endpoints, most, func(e report.EndpointStatus) int { return toInt(class(e.State) != "bad") })
	endpoints, s.MoreRows = cut(endpoints, most)
	for _, e := range endpoints {
		s.Rows = append(s.Rows, endpointOf(st.Key(), e, now))
	}
	s.Announced, s.MoreAnnounced = cut(worstFirst(st.Announced, most, func(a report.AnnouncedAddress) int { return toInt(a.Announced) }), most)
	s.Warnings, s.MoreWarn = cut(st.Warnings, most)
	s.Endpoints, s.Frontends = nil, nil // they are in Rows and Addresses
	return s
}

// cut returns a copy of the first elements of a list, and how many more there are.
func cut[T any](list []T, most int) (first []T, more int) {
	more = max(0, len(list)-most)
	return slices.Clone(list[:len(list)-more]), more
}

// worstFirst sorts a list by rank if it has more than most elements.
func worstFirst[T any](list []T, most int, rank func(T) int) []T {
	if len(list) <= most {
		return list
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b T) int { return rank(a) - rank(b) })
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// class returns the CSS class of the state of an endpoint.
func class(state string) string {
	switch state {
	case policy.Ready.String(), policy.Up.String():
		return "good"
	case policy.Down.String(), policy.NotReady.String():
		return "bad"
	}
	return "odd"
}

func endpointOf(of source.Key, e report.EndpointStatus, now time.Time) endpoint {
	row := endpoint{
		Address: e.Address, State: control.StateWord(e), Class: class(e.State), Share: "-", Weight: strconv.Itoa(int(e.Weight)), Where: "remote",
		Active: "-", Since: known(control.Since(now, e)), Why: known(control.Why(now, e)), Command: drainCommand(of, e),
	}
	if e.Gets > 0 {
		row.Share = strings.TrimSuffix(fmt.Sprintf("%.1f", e.Gets), ".0") + " %"
	}
	if e.Local {
		row.Where = "local"
	}
	if e.Active != nil {
		row.Active = control.Grouped(int(*e.Active))
	}
	return row
}

// known returns the text of a table cell, which is empty if the value is unknown ("-").
func known(cell string) string { return strings.TrimPrefix(cell, "-") }

// drainCommand returns the command that drains an endpoint, or nothing if it is already drained.
func drainCommand(of source.Key, e report.EndpointStatus) string {
	text, _, _ := strings.Cut(e.Address, "{") // ports
	addr, err := netip.ParseAddr(text)
	if at, withPort := netip.ParseAddrPort(text); err != nil && withPort == nil {
		addr = at.Addr()
	}
	if !addr.IsValid() || e.State == policy.Draining.String() || !source.IsLabel(of.Namespace) || !source.IsLabel(of.Name) {
		return ""
	}
	return "svcproxy drain " + conditions.DrainTarget{Addr: addr, Service: of}.String()
}

// filesOf returns all files. Files that are not accepted come first.
func filesOf(f *facts, now time.Time) (list []file) {
	for _, src := range f.sources {
		for _, x := range slices.Concat(src.Files, src.Objects) {
			at, why := control.FirstFault(x)
			if at != x.Path {
				why = at + ": " + why
			}
			list = append(list, file{x.Path, string(x.State), control.Age(now, x.Since), why, x.Services, x.State != source.Accepted})
		}
	}
	slices.SortStableFunc(list, func(a, b file) int { return toInt(b.Bad) - toInt(a.Bad) })
	return list
}

// paged returns the part of a list for the requested page, and links to other pages.
func paged[T any](list []T, q *question, path string) (here []T, links []choice) {
	last := max(1, (len(list)+perPage-1)/perPage)
	q.Page = min(q.Page, last)
	from := (q.Page - 1) * perPage
	if last == 1 {
		return list, nil
	}
	to, skipped := *q, false
	for n := 1; n <= last; n++ {
		if n > 2 && n < last-1 && (n < q.Page-2 || n > q.Page+2) {
			if !skipped {
				links = append(links, choice{link{Text: "…"}, false})
			}
			skipped = true
			continue
		}
		to.Page, skipped = n, false
		links = append(links, choice{link{strconv.Itoa(n), to.link(path) + "#list"}, n == q.Page})
	}
	return list[from:min(from+perPage, len(list))], links
}
