package source

import "fmt"

// A Masquerading says whose address is replaced by one of this host on the way to endpoints.
type Masquerading uint8

// MasqueradeAsSet: as the setting of the host says. MasqueradeAuto: every source of VIPs that is
// not local. MasqueradeAll: everyone. MasqueradeNever: no one, of other addresses and node ports
// either, where only host processes are.
const (
	MasqueradeAsSet Masquerading = iota
	MasqueradeAuto
	MasqueradeAll
	MasqueradeNever
)

// String returns the word as files write it; empty: as the setting says.
func (m Masquerading) String() string { return [...]string{"", "auto", "all", "never"}[m] }

// masquerading finds what cannot be together with the way of packets to endpoints.
func (v *validator) masquerading() {
	if m := v.Masquerade; v.Forward.Answers() && m != MasqueradeAsSet && m != MasqueradeNever {
		v.fault(At("masquerade"), fmt.Sprintf("masquerade = %q with forward = %q", m, v.Forward.Method),
			"endpoints answer clients themselves, so these keep their address: leave it out")
	}
}
