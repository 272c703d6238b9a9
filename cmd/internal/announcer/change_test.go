package announcer

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/configs"
)

// Other routers have sessions without an end of those that stay, where the Speaker can do so.
func TestChangedRoutersKeepOtherSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		first, second := configs.BGPPeer{Address: peerAddr, AS: 1}, configs.BGPPeer{Address: netip.MustParseAddr("192.0.2.253"), AS: 1}
		a, ready, _ := begin(t, w, bgpTo(first))
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.254:]", "routes ")
		a.Use(bgpTo(first, second))
		w.expect(t, "peers map[192.0.2.253: 192.0.2.254:] []")
		marked := bgpTo(second)
		marked.Communities = []string{"64512:1"}
		a.Use(marked)
		w.expect(t, "peers map[192.0.2.253:] [64512:1]")
		if s := a.Sessions(); len(s) != 1 || s[0].Peer != second.Address || !s[0].Up() {
			t.Errorf("sessions %+v", s)
		}
		a.routers.mu.Lock()
		a.routers.running.speaker.(*speaker).stiff = true
		a.routers.mu.Unlock()
		a.Use(bgpTo(first))
		w.expect(t, "stop graceful=true", "open 64512 192.0.2.1 map[192.0.2.254:]", "routes ")
		longer := bgpTo(first)
		longer.GracefulRestart = time.Minute
		a.Use(longer)
		w.expect(t, "stop graceful=true", "open 64512 192.0.2.1 map[192.0.2.254:]", "routes ")
	})
}

// A Speaker that has ended gets no other routers: there is another one.
func TestRoutersChangeAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		first, second := configs.BGPPeer{Address: peerAddr, AS: 1}, configs.BGPPeer{Address: netip.MustParseAddr("192.0.2.253"), AS: 1}
		a := New(Config{Log: slog.New(slog.DiscardHandler), BGP: bgpTo(first), Open: w.open, RouterID: func() netip.Addr { return peerAddr }})
		a.routers.speak(t.Context(), a.settings, false)
		w.expect(t, "open 64512 192.0.2.254 map[192.0.2.254:]")
		a.routers.running.speaker.(*speaker).crash <- errors.New("out of memory")
		synctest.Wait()
		a.Use(bgpTo(first, second))
		a.routers.speak(t.Context(), a.settings, false)
		w.expect(t, "open 64512 192.0.2.254 map[192.0.2.253: 192.0.2.254:]")
		a.stop()
		a.routers.speakers.Wait()
	})
}
