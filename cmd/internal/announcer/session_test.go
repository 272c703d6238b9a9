package announcer

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A listed is a speaker with sessions that are given.
type listed struct {
	*speaker
	list []Session
}

func (l *listed) Sessions(numbers bool) []Session {
	if numbers {
		panic("numbers of routes take their time")
	}
	return l.list
}

// An address is heard of where one session is established that takes its family.
func TestAddressNeedsASessionOfItsFamily(t *testing.T) {
	other := netip.MustParseAddr("192.0.2.253")
	down, both := Session{State: "active"}, Session{State: Established}
	four := Session{State: Established, IPv6: SessionRoutes{Withheld: "not IPv6"}}
	const none = "no session is established"
	for _, tt := range []struct {
		name         string
		sessions     []Session
		want4, want6 string
		noSpeaker    bool
	}{
		{name: "all", sessions: []Session{both, both}},
		{name: "one", sessions: []Session{down, both}},
		{name: "none", sessions: []Session{down, down}, want4: none, want6: none},
		{name: "one family", sessions: []Session{four, down}, want6: "not IPv6"},
		{name: "one each", sessions: []Session{four, both}},
		{name: "no speaker", noSpeaker: true, want4: none, want6: none},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := New(Config{BGP: bgpTo(configs.BGPPeer{Address: peerAddr}, configs.BGPPeer{Address: other})})
			for i, p := range []netip.Addr{peerAddr, other} {
				if !tt.noSpeaker {
					tt.sessions[i].Peer = p
				}
			}
			if !tt.noSpeaker {
				a.routers.running = &running{speaker: &listed{list: tt.sessions}}
			}
			if got4, got6 := a.Unheard(policy.IPv4), a.Unheard(policy.IPv6); got4 != tt.want4 || got6 != tt.want6 {
				t.Errorf("%s: %q, %q; want %q, %q", tt.name, got4, got6, tt.want4, tt.want6)
			}
		})
	}
}

// All that there is to say of a session is in its row.
func TestSessionRowGivesEveryReason(t *testing.T) {
	for _, tt := range []struct {
		session Session
		lack    lack
		want    string
	}{
		{Session{State: Established}, lack{}, ""},
		{Session{State: Established, IPv6: SessionRoutes{Withheld: "no IPv6"}, Notice: "sends many"}, lack{}, "no IPv6; sends many"},
		{Session{State: Established, IPv4: SessionRoutes{Withheld: "none"}, IPv6: SessionRoutes{Withheld: "none"}}, lack{}, "none"},
		{Session{State: Established, Notice: "sends many"}, lack{why: "no password", kept: true}, "sends many; no password"},
		{Session{State: "active", LastError: "refused"}, lack{why: "no password", kept: true}, "refused; no password"},
		{Session{State: "active", LastError: "refused"}, lack{why: "no password"}, "no password"},
	} {
		tt.session.addLack(tt.lack)
		if got := tt.session.Why(); got != tt.want {
			t.Errorf("%+v: %q; want %q", tt.session, got, tt.want)
		}
	}
}
