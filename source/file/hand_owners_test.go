package file

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

// ownedBy are owners of which one has a.toml, and its list, with these addresses.
func ownedBy(user, addresses string) []read.Owner {
	return []read.Owner{{
		Files: []string{"a.toml", "a.endpoints.json"}, Users: []string{user}, Addresses: []netip.Prefix{netip.MustParsePrefix(addresses)}, Namespaces: []string{"default"},
	}}
}

// A file that loses its share stays as it was last accepted, also over a restart, and is at fault. With the share it is
// accepted again. So does a large one, which is read beside.
func TestSharesOfAcceptedFile(t *testing.T) {
	for name, more := range map[string]string{"small": "", "large": strings.Repeat("# padding\n", largeSize/10+1)} {
		t.Run(name, func(t *testing.T) {
			me := strconv.Itoa(os.Getuid())
			var owners atomic.Value
			owners.Store(ownedBy(me, "10.96.1.0/24"))
			h := newHost(t)
			h.real, h.owners = true, func() []read.Owner { return owners.Load().([]read.Owner) }
			text := func(vip string) string {
				return "[[services]]\nname = \"a\"\nvips = [\"" + vip + "\"]\nports = [{ port = 80 }]\nendpoints_from = \"a.endpoints.json\"\n" + more
			}
			synctest.Test(t, func(t *testing.T) {
				h.T, h.fixture.T = t, t
				share := func(now []read.Owner) func() {
					return func() { owners.Store(now); h.src.Revalidate() }
				}
				is := func(when, name, state, inUse, fault string) {
					t.Helper()
					got := h.faults()
					h.src.mu.Lock()
					defer h.src.mu.Unlock()
					f, vip := h.src.files[name], ""
					if f.good != nil && len(f.good.Services) > 0 {
						vip = f.good.Services[0].VIPs[0].String()
					}
					if string(f.state) != state || vip != inUse {
						t.Errorf("%s: %s is %s and serves %q, want %s and %q", when, name, f.state, vip, state, inUse)
					}
					if fault != "" && !strings.Contains(got, fault) || fault == "" && strings.Contains(got, "owners") {
						t.Errorf("%s: faults %s, want %q", when, got, fault)
					}
				}
				const outside = "a.toml:3:9: 10.96.1.1 is outside of addresses of owners[0] in svcproxy.toml"
				h.write("a.toml", text("10.96.1.1"))
				h.write("a.endpoints.json", `["192.0.2.1"]`)
				h.start()
				moment()
				is("at first", "a.toml", "accepted", "10.96.1.1", "")
				h.change(share(ownedBy(me, "10.96.2.0/24")))
				is("without its address", "a.toml", "stale", "10.96.1.1", outside)
				h.stop()
				h.start()
				moment()
				is("after a restart", "a.toml", "stale", "10.96.1.1", outside)
				h.change(func() { h.write("a.toml", text("10.96.3.1")) })
				is("with another that is not its own", "a.toml", "stale", "10.96.1.1", "10.96.3.1 is outside of addresses")
				h.change(share(ownedBy("nobody-yet", "10.96.0.0/16")))
				is("of a user who does not exist", "a.toml", "stale", "10.96.1.1", "has a file of this name and of user "+me)
				owners.Store(ownedBy(me, "10.96.0.0/16")) // as if the user existed by now
				time.Sleep(hashPoll + time.Second)
				is("of a user who was added", "a.toml", "accepted", "10.96.3.1", "")
				h.change(func() { h.write("a.toml", text("10.96.1.1")) })
				h.change(share(ownedBy("4294967290", "10.96.0.0/16")))
				is("of another user", "a.toml", "stale", "10.96.1.1", "has a file of this name and of user "+me)
				is("of another user", "a.endpoints.json", "stale", "", "a.endpoints.json: no [[owners]]")
				h.change(func() { h.write("a.toml", "services = []\n"+more) })
				is("whose services it cannot remove", "a.toml", "stale", "10.96.1.1", "has a file of this name and of user "+me)
				h.change(share(ownedBy(me, "10.96.0.0/16")))
				is("with its share", "a.toml", "accepted", "", "")
				h.change(func() { h.write("a.toml", text("10.96.1.1")) })
				is("that wants it again", "a.toml", "accepted", "10.96.1.1", "")
				h.change(func() { h.write("b.toml", strings.ReplaceAll(text("10.96.1.2"), `"a"`, `"b"`)) })
				is("a new name", "b.toml", "refused", "", "b.toml: no [[owners]]")
				h.stop()
				h.checkStore()
			})
		})
	}
}

// What is held is judged by the shares of when it is let go, also where one change of settings does both.
func TestSharesOfHeldChange(t *testing.T) {
	me := strconv.Itoa(os.Getuid())
	for name, letGo := range map[string]func(h *host){
		"the guard is off": func(h *host) { h.src.SetGuard(Guard{}) },
		"confirm": func(h *host) {
			if _, err := h.src.Confirm(context.Background()); err != nil {
				t.Log(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var owners atomic.Value
			owners.Store(ownedBy(me, "10.96.0.0/16"))
			h := newHost(t)
			h.real, h.guard, h.owners = true, Guard{Manual: true}, func() []read.Owner { return owners.Load().([]read.Owner) }
			text := func(vip string) string {
				return "[[services]]\nname = \"a\"\nvips = [\"" + vip + "\"]\nports = [{ port = 80 }]\nendpoints = [\"192.0.2.1\"]\n"
			}
			synctest.Test(t, func(t *testing.T) {
				h.T, h.fixture.T = t, t
				h.write("a.toml", text("10.96.1.1"))
				h.start()
				moment()
				h.change(func() { h.write("a.toml", text("10.96.2.1")) })
				if n := h.src.Held(); n != 1 {
					t.Errorf("%d changes are held", n)
				}
				h.change(func() {
					owners.Store(ownedBy(me, "10.96.1.0/24"))
					h.src.Revalidate()
					letGo(h)
				})
				h.src.mu.Lock()
				vip := h.src.files["a.toml"].good.Services[0].VIPs[0].String()
				h.src.mu.Unlock()
				if n := h.src.Held(); vip != "10.96.1.1" || n != 0 {
					t.Errorf("serves %s, and %d changes are held; faults %s", vip, n, h.faults())
				}
				h.stop()
				h.checkStore()
			})
		})
	}
}
