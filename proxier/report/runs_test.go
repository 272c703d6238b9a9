package report

import (
	"fmt"
	"slices"
	"testing"
)

// Rows are merged where all but the port is the same, and ports follow each other.
func TestRunsOfPortsMerge(t *testing.T) {
	row := func(address, action string) FrontendStatus { return FrontendStatus{Address: address, Action: action} }
	ports := func(from, to int, action string) (list []FrontendStatus) {
		for n := from; n <= to; n++ {
			list = append(list, row(fmt.Sprintf("[fd00::1]:%d/udp", n), action))
		}
		return list
	}
	for _, tt := range []struct {
		name string
		list []FrontendStatus
		want []FrontendStatus
	}{
		{"none", nil, nil},
		{"three", ports(1, 3, "drop"), ports(1, 3, "drop")},
		{"all there can be", ports(1, 65535, "drop"), []FrontendStatus{row("[fd00::1]:1-65535/udp", "drop")}},
		{"one of them otherwise", slices.Concat(ports(1, 4, "drop"), ports(5, 5, "balance"), ports(6, 8, "drop")),
			slices.Concat([]FrontendStatus{row("[fd00::1]:1-4/udp", "drop")}, ports(5, 5, "balance"), ports(6, 8, "drop"))},
		{"a gap", slices.Concat(ports(1, 4, "drop"), ports(6, 9, "drop")),
			[]FrontendStatus{row("[fd00::1]:1-4/udp", "drop"), row("[fd00::1]:6-9/udp", "drop")}},
		{"node ports, and others between", []FrontendStatus{
			row("ipv4:30000/tcp", "drop"), row("192.0.2.1:30001/tcp", "drop"), row("ipv4:30001/tcp", "drop"), row("ipv4:30001/udp", "drop"),
			row("ipv4:30002/tcp", "drop"), row("ipv4:30003/tcp", "drop"),
		}, []FrontendStatus{row("ipv4:30000-30003/tcp", "drop"), row("192.0.2.1:30001/tcp", "drop"), row("ipv4:30001/udp", "drop")}},
		{"what is no address", []FrontendStatus{row("a", ""), row("a:b/c", ""), row("", ""), row("a:/c", "")},
			[]FrontendStatus{row("a", ""), row("a:b/c", ""), row("", ""), row("a:/c", "")}},
	} {
		was := slices.Clone(tt.list)
		if got := Runs(tt.list); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if !slices.Equal(tt.list, was) {
			t.Errorf("%s: the list itself was changed", tt.name)
		}
	}
}
