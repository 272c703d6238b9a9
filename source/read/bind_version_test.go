package read

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// bindFile is a version of a file of services, each as "name port families list": a port of this name, and an address of the
// families 4, 6 or 46.
func bindFile(t *testing.T, services string) *Version {
	t.Helper()
	var b strings.Builder
	for i, text := range strings.Split(services, ", ") {
		f := strings.Fields(text)
		var vips []string
		for _, family := range f[2] {
			vips = append(vips, fmt.Sprintf(map[rune]string{'4': `"10.96.0.%d"`, '6': `"fd00:96::%d"`}[family], i+1))
		}
		fmt.Fprintf(&b, "[[services]]\nname = %q\nvips = [%s]\nports = [{ name = %q, port = 80 }]\nendpoints_from = %q\n", f[0], strings.Join(vips, ", "), f[1], f[3]+".endpoints.json")
	}
	v := NewVersion(t.Context(), "f.toml", []byte(b.String()), nil, Rules{}, Rules.ParseNew, nil)
	if v.Broken {
		t.Fatal(v.Faults)
	}
	return v
}

// bindLists are versions of lists, each as "name: endpoints", and one of these as 1, 1=http with a port of this name, or :1 of IPv6.
func bindLists(t *testing.T, text string) Lookup {
	t.Helper()
	lists := map[string]*Version{}
	for list := range strings.SplitSeq(text, ", ") {
		name, endpoints, _ := strings.Cut(list, ":")
		var b []string
		for _, e := range strings.Fields(endpoints) {
			n, port, named := strings.Cut(e, "=")
			address := "10.1.0." + n
			if strings.HasPrefix(n, ":") {
				address = "fd00:" + n
			}
			if named {
				b = append(b, fmt.Sprintf(`{"address": %q, "ports": {%q: 8080}}`, address, port))
			} else {
				b = append(b, fmt.Sprintf("%q", address))
			}
		}
		path := name + ".endpoints.json"
		lists[path] = ListVersion(path, []byte("["+strings.Join(b, ",\n")+"]"), Rules{})
	}
	return func(name string) (*Version, string) { return lists[name], LacksList }
}

// shown are the endpoints of services, those that do not take the list in use with a star.
func (b *Bound) shown() string {
	var out []string
	for _, s := range b.Services {
		text := s.Name
		if _, keeps := b.Kept[s.Key]; keeps {
			text += "*"
		}
		for _, e := range s.Endpoints {
			text += " " + e.Addr.String()[strings.LastIndexAny(e.Addr.String(), ".:")+1:]
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// Which version of its list each service of a file takes, where file and lists change one after the other.
func TestBindChoosesListVersions(t *testing.T) {
	type step struct{ file, lists, want, fault string } // want: empty where the file cannot be used
	const a, six = "a http 4 l", "a http 6 l"
	noPort := func(name string) string {
		return fmt.Sprintf(`l.endpoints.json:1:43: for service "default/%s" (f.toml:2:8): the service has no port named "web"; want http`, name)
	}
	const four = `l.endpoints.json:1:2: for service "default/a" (f.toml:2:8): endpoint 10.1.0.1 is IPv4, and the service has no address of that family; nothing would be sent to it`
	const missing = `f.toml:5:18: "l.endpoints.json" is no file of this directory; the file is used once the list is there: [] is one without endpoints`
	for name, steps := range map[string][]step{
		"it fits":                     {{a, "l: 1", "a 1", ""}, {a, "l: 2 3", "a 2 3", ""}, {a, "l:", "a", ""}},
		"a port name that it lacks":   {{a, "l: 1=http", "a 1", ""}, {a, "l: 2=web", "a* 1", noPort("a")}, {a, "l: 3=http", "a 3", ""}},
		"again and again":             {{a, "l: 1", "a 1", ""}, {a, "l: 2=web", "a* 1", noPort("a")}, {a, "l: 3=web 4", "a* 1", noPort("a")}},
		"it fits one of two":          {{a + ", b http 46 l", "l: 1", "a 1, b 1", ""}, {a + ", b http 46 l", "l: 2 :3", "a* 1, b 2 3", strings.Replace(strings.Replace(four, "1:2", "2:1", 1), "10.1.0.1 is IPv4", "fd00::3 is IPv6", 1)}},
		"each keeps its own":          {{a + ", b http 46 l", "l: 1", "a 1, b 1", ""}, {a + ", b http 46 l", "l: :2", "a* 1, b 2", strings.Replace(four, "10.1.0.1 is IPv4", "fd00::2 is IPv6", 1)}, {a + ", b http 46 l", "l: 3=web", "a* 1, b* 2", noPort("a")}},
		"never fitted":                {{a, "l: 1=web", "", noPort("a")}},
		"there is none yet":           {{a, "m: 1", "", missing}, {a, "l: 1", "a 1", ""}},
		"there is none any more":      {{a, "l: 1", "a 1", ""}, {a, "m: 1", "a* 1", missing}},
		"the service changes":         {{a, "l: 1", "a 1", ""}, {six, "l: 1", "", four}, {six, "l: :2", "a 2", ""}},
		"both, one after the other":   {{a, "l: 1", "a 1", ""}, {a, "l: :2", "a* 1", strings.Replace(four, "10.1.0.1 is IPv4", "fd00::2 is IPv6", 1)}, {six, "l: :2", "a 2", ""}},
		"both at once":                {{a, "l: 1", "a 1", ""}, {six, "l: :2", "a 2", ""}},
		"fits what it keeps":          {{a, "l: 1", "a 1", ""}, {a, "l: 2=web", "a* 1", noPort("a")}, {"a http 46 l", "l: 2=web", "a* 1", noPort("a")}},
		"a new one beside":            {{a, "l: 1", "a 1", ""}, {a, "l: 2=web", "a* 1", noPort("a")}, {a + ", b http 4 l", "l: 2=web", "a* 1, b* 1", noPort("a")}},
		"a new one, and a list":       {{a, "l: 1", "a 1", ""}, {a, "l: 2=web", "a* 1", noPort("a")}, {a + ", b http 4 l", "l: 3=web", "a* 1, b* 1", noPort("a")}},
		"a new one where all fit":     {{"a web 4 l", "l: 2=web", "a 2", ""}, {"b http 4 l, a web 4 l", "l: 2=web", "", noPort("b")}},
		"another list":                {{a, "l: 1, m: 2", "a 1", ""}, {"a http 4 m", "l: 1, m: 2", "a 2", ""}, {"a http 4 m", "l: 1, m: 3=web", "a* 2", strings.Replace(noPort("a"), "l.end", "m.end", 1)}},
		"what it keeps is of another": {{a, "l: 1, m: 2=web", "a 1", ""}, {"a http 4 m", "l: 1, m: 2=web", "", strings.Replace(noPort("a"), "l.end", "m.end", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			var base *Bound
			for i, s := range steps {
				v := bindFile(t, s.file)
				if base.Of(v) {
					v = base.Version
				}
				b := Rules{}.Bind(v, bindLists(t, s.lists), base, nil, nil)
				got, fault := b.shown(), ""
				if b.Unfit {
					got = ""
				} else {
					base = b
				}
				if all := b.AllFaults(); len(all) > 0 {
					fault = all[0].String()
				}
				if got != s.want || fault != s.fault {
					t.Fatalf("step %d: %q, %s\nwant %q, %s", i+1, got, fault, s.want, s.fault)
				}
				if slices.ContainsFunc(v.Services, func(s *source.Service) bool { return len(s.Endpoints) > 0 }) {
					t.Fatalf("step %d changed the version itself", i+1)
				}
			}
		})
	}
}

// A file has no more than the limits allow, whatever its lists become: what it has is counted first.
func TestBindLimits(t *testing.T) {
	const file = "a http 4 l, b http 4 m"
	more := func(n int) string {
		return fmt.Sprintf("f.toml:5:18: the services of this file have %d endpoints of frontends (addresses times ports times endpoints), more than 5; "+
			"use fewer addresses, ports, endpoints or different weights, or raise frontend_endpoints in [limits] of svcproxy.toml", n)
	}
	for name, steps := range map[string][][4]string{ // file, lists, what is bound, the fault
		"one grows":            {{file, "l: 1 2, m: 1 2", "a 1 2, b 1 2", ""}, {file, "l: 1 2 3 4, m: 1 2", "a* 1 2, b 1 2", more(6)}},
		"until there is room":  {{file, "l: 1 2, m: 1 2", "a 1 2, b 1 2", ""}, {file, "l: 1 2 3 4, m: 1 2", "a* 1 2, b 1 2", more(6)}, {file, "l: 1 2 3 4, m: 1", "a 1 2 3 4, b 1", ""}},
		"made in one step":     {{file, "l: 1 2, m: 1 2", "a 1 2, b 1 2", ""}, {file, "l: 1 2 3 4, m: 1", "a 1 2 3 4, b 1", ""}},
		"what shrinks unfit":   {{file, "l: 1 2, m: 1 2", "a 1 2, b 1 2", ""}, {file, "l: 1 2 3 4, m: 1=web", "a* 1 2, b* 1 2", more(6)}},
		"too many at first":    {{file, "l: 1 2 3 4, m: 1 2", "", strings.Replace(more(6), ":5:18", ":10:18", 1)}},
		"a service that grows": {{file, "l: 1 2, m: 1 2", "a 1 2, b 1 2", ""}, {strings.ReplaceAll(file, "b http 4", "b http 4 m, c http 4"), "l: 1 2, m: 1 2", "", strings.Replace(more(6), ":5:18", ":15:18", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := Rules{Limits: Limits{FrontendEndpoints: 5}}
			var base *Bound
			for i, s := range steps {
				v := bindFile(t, s[0])
				if base.Of(v) {
					v = base.Version
				}
				b := rules.Bind(v, bindLists(t, s[1]), base, nil, nil)
				got, fault := b.shown(), ""
				if b.Unfit {
					got = ""
				} else {
					base = b
				}
				if all := b.AllFaults(); len(all) > 0 {
					fault = all[0].String()
				}
				if got != s[2] || fault != s[3] {
					t.Fatalf("step %d: %q, %s\nwant %q, %s", i+1, got, fault, s[2], s[3])
				}
			}
		})
	}
}
