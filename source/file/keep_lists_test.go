package file

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// addrs returns the endpoints of the services in use.
func (h *host) addrs() string {
	h.src.mu.Lock()
	defer h.src.mu.Unlock()
	var b []string
	for _, name := range sortedNames(h.src.files) {
		for _, s := range h.src.files[name].services() {
			for _, e := range s.Endpoints {
				b = append(b, e.Addr.String())
			}
		}
	}
	return strings.Join(b, " ")
}

// namedList is a list of such endpoints for services with a port of this name.
func namedList(port string, last ...int) string {
	var b []string
	for _, n := range last {
		b = append(b, fmt.Sprintf(`{"address": "10.1.0.%d", "ports": {%q: 8080}}`, n, port))
	}
	return "[" + strings.Join(b, ", ") + "]\n"
}

// What a service keeps of its list survives what comes after, in memory and over a restart.
func TestKeptListSurvives(t *testing.T) {
	const list = "web.endpoints.json"
	cannotBeKept := func(h *host) { // the copy of a list that fits
		check(h.T, os.MkdirAll(h.copyOf(list, namedList("http", 3, 4))+"/x", 0o700))
		h.set(list, namedList("http", 3, 4))
		check(h.T, os.RemoveAll(h.copyOf(list, namedList("http", 3, 4))))
	}
	onTrial := func(more ...string) func(h *host) {
		return func(h *host) {
			h.set(list, namedList("web", 3))
			h.apply(time.Minute)
			h.set(list, namedList("http", 7, 8, 9))
			for _, text := range more {
				h.set(list, text)
			}
		}
	}
	for name, c := range map[string]struct {
		begin, off func(h *host) // while the process runs, and while none does
		want       string
	}{
		"a trial of a list that fits":         {onTrial(), nil, "10.1.0.1 10.1.0.2"},
		"and then of one that does not":       {onTrial(namedList("web", 10)), nil, "10.1.0.1 10.1.0.2"},
		"and then of the one before":          {onTrial(namedList("web", 3)), nil, "10.1.0.1 10.1.0.2"},
		"a trial that ends while none runs":   {onTrial(), func(*host) { pass(2 * time.Minute) }, "10.1.0.1 10.1.0.2"},
		"one with two lists":                  {onTrial(namedList("web", 10)), func(*host) { pass(2 * time.Minute) }, "10.1.0.1 10.1.0.2"},
		"a list of which no copy was written": {func(h *host) { cannotBeKept(h); h.set(list, namedList("web", 5)) }, nil, "10.1.0.3 10.1.0.4"},
		"one that then cannot be read": {func(h *host) {
			h.set(list, namedList("web", 5))
			check(h.T, os.MkdirAll(h.copyOf(list, namedList("http", 3, 4))+"/x", 0o700))
			h.set(list, namedList("http", 3, 4))
			pass(2 * time.Minute)
		}, func(h *host) {
			check(h.T, os.RemoveAll(h.copyOf(list, namedList("http", 3, 4))))
			h.write(list, "[")
		}, "10.1.0.1 10.1.0.2"},
		"a slow disk": {func(h *host) {
			release := h.stall()
			h.set(list, namedList("http", 3, 4))
			h.set(list, namedList("web", 5))
			release()
		}, nil, "10.1.0.3 10.1.0.4"},
		"an older version of the file": {func(h *host) {
			h.set(list, namedList("web", 3))
			h.set("web.toml", portNamed("http", "")+"# x\n")
			pass(time.Minute)
			h.change(func() {})
		}, func(h *host) { h.damage("web.toml"); h.write("web.toml", "[") }, "10.1.0.1 10.1.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("a.toml", serviceFrom("a", "endpoints = []"))
				h.write("web.toml", portNamed("http", ""))
				h.write(list, namedList("http", 1, 2))
				h.start()
				moment()
				c.begin(h)
				if c.off != nil {
					h.stop()
					c.off(h)
					h.start()
				}
				pass(2 * time.Minute)
				for _, when := range []string{"then", "restarted"} {
					if got := h.addrs(); got != c.want {
						h.Errorf("%s: %s; want %s\n%s", when, got, c.want, &h.log)
					}
					h.restart()
				}
			})
		})
	}
}

// While nothing can be written, what services keep is noted of those versions only that a start may find.
func TestKeptListsOfFewVersions(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", namedList("http", 1, 2))
		h.start()
		moment()
		h.set("web.endpoints.json", namedList("web", 3))
		check(t, os.Remove(h.state+"/lastgood/decisions"))
		check(t, os.MkdirAll(h.state+"/lastgood/decisions/x", 0o700))
		for i := range 20 {
			h.set("web.endpoints.json", namedList("http", 10+i))
			h.set("web.endpoints.json", namedList("web", 3))
		}
		if n := len(h.src.decisions.kept["web.endpoints.json"]); n < 1 || n > 3 {
			t.Errorf("noted of %d versions", n)
		}
		check(t, os.RemoveAll(h.state+"/lastgood/decisions"))
		pass(2 * time.Minute)
		h.set("web.endpoints.json", namedList("http", 1, 2))
		pass(2 * time.Minute)
	})
}

// A service that comes to fit its list does not have another, which does not, lose what it keeps. The process may be killed
// meanwhile.
func TestKilledWhileOneOfTwoFits(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("other.toml", strings.Replace(serviceFrom("other", "endpoints = []"), "10.96.0.111", "10.96.0.1", 1))
		api := strings.NewReplacer(`"web"`, `"api"`, "10.96.0.119", "10.96.0.97", "web.endpoints", "api.endpoints").Replace(portNamed("http", ""))
		h.write("web.toml", portNamed("http", "")+api)
		h.write("web.endpoints.json", namedList("http", 1, 2))
		h.write("api.endpoints.json", namedList("http", 1, 2))
		h.start()
		moment()
		h.set("web.endpoints.json", namedList("web", 3), "api.endpoints.json", namedList("web", 3))
		h.write("api.endpoints.json", namedList("http", 5, 6))
		h.killedWhile("fits", "api 2, other 0, web 2")
	})
}

// A version that is refused, for another file has what it claims, keeps its lists over a restart, too.
func TestRefusedVersionKeepsItsList(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("other.toml", strings.Replace(serviceFrom("other", "endpoints = []"), "10.96.0.111", "10.96.0.1", 1))
		h.write("web.toml", serviceFrom("web", "endpoints = []"))
		h.write("web.endpoints.json", namedList("http", 1, 2))
		h.start()
		moment()
		h.set("web.toml", portNamed("http", `, "10.96.0.1"`))
		h.set("web.endpoints.json", namedList("web", 3))
		for _, when := range []string{"then", "restarted"} {
			h.use(when, "other 0, web 0")
			h.say(when, "other.toml accepted 1; web.endpoints.json accepted 0; web.toml accepted 1", h.faults())
			h.restart()
		}
	})
}
