package announcer

import (
	"reflect"

	"svcproxy.dev/svcproxy/configs"
)

// ofSpeaker returns what a Speaker cannot change while it runs.
func ofSpeaker(b configs.BGP) configs.BGP {
	b.OnStop, b.Communities, b.Peers = "", nil, nil
	return b
}

// change has a Speaker go on with other routers, or with others of their settings, and reports whether it does.
func (a *Announcer) change(run *running, want configs.BGP) bool {
	if !want.Enabled() || !reflect.DeepEqual(ofSpeaker(want), ofSpeaker(a.used)) {
		return false
	}
	peers := a.passwords(want)
	if len(peers) == 0 {
		return false
	}
	done, err := run.speaker.SetPeers(want, peers)
	if err != nil || !done {
		return false // another Speaker says what is wrong
	}
	a.cfg.Log.Info("routers of BGP changed: sessions with the others go on")
	next := *run
	next.peers = peers
	a.used = want
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = &next
	return true
}
