//go:build netns

package lab

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

var fileGroups = []group{{
	name:   "files",
	except: inSoakOnly,
	cases: []testCase{
		{name: "broken file", run: testBrokenFile},
		{name: "directory in the place of a file", run: testDirectoryForFile},
		{name: "claim clash", run: testClaimClash},
		{name: "service moves to another file", run: testServiceMoves},
		{name: "toml", run: testTOML},
		{name: "list of endpoints", run: testEndpointsFrom},
		{name: "settings change", run: testSettingsChange},
	},
}}

// named returns a service of the case with another name and VIP.
func (e *env) named(suffix string, i byte, endpoints ...Endpoint) Service {
	s := e.service(endpoints...)
	s.Name, s.VIPs = e.name()+"-"+suffix, e.vip(i).Each()
	return s
}

// remove removes a case's further files when it ends.
func (e *env) remove(t *testing.T, files ...string) {
	t.Cleanup(func() {
		for _, name := range files {
			if err := e.daemon.RemoveFile(name); err != nil {
				t.Error(err)
			}
		}
	})
}

func testBrokenFile(t *testing.T, e *env) {
	e.apply(t, e.named("good", 1, at(e.Local[0])...))
	e.file(t, "fragile", e.named("fragile", 2, at(e.Local[0])...))
	e.remove(t, "fragile.json")
	for _, text := range []string{
		`{"services": [`,
		`{"services": [{"name": "fragile", "vips": ["10.96.99.1"], "ports": [{"port": 0}]}]}`,
		"",
	} {
		for _, ep := range e.Remote[:2] {
			if err := e.daemon.WriteFile("fragile.json", text); err != nil {
				t.Fatal(err)
			}
			e.apply(t, e.named("good", 1, at(ep)...))
			e.expect(t,
				check{from: e.Client, to: e.vip(1), want: by(ep)},
				check{from: e.Client, to: e.vip(2), want: by(e.Local[0])},
			)
		}
	}
	e.file(t, "fragile", e.named("fragile", 2, at(e.Local[1])...))
	e.expect(t, check{from: e.Client, to: e.vip(2), want: by(e.Local[1])})
}

// testDirectoryForFile: where a directory, or a link to one, comes in the place of a file, its services stay.
func testDirectoryForFile(t *testing.T, e *env) {
	path := e.daemon.path("fragile.json")
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	for i, replace := range []func() error{
		func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
		func() error {
			_, err := e.Node.Run("ln", "-sfn", e.daemon.StateDir(), path)
			return err
		},
	} {
		e.file(t, "fragile", e.named("fragile", 1, at(e.Local[i])...))
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		e.expectState(t, "fragile.json", source.Stale, "cannot be read: it is a directory")
		e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[i])})
		if err := os.RemoveAll(path); err != nil { // nothing is renamed over a directory
			t.Fatal(err)
		}
	}
}

// testClaimClash: of two files that claim one address and port, the one that
// was accepted first keeps it, whatever their names. The other is refused whole,
// and gets in, untouched, when the claim is released.
func testClaimClash(t *testing.T, e *env) {
	e.file(t, "second-name", e.named("holder", 1, at(e.Local[0])...))
	clash := e.named("clash", 1, at(e.Local[1])...)
	bystander := e.named("bystander", 2, at(e.Local[1])...)
	if _, err := e.daemon.Write("first-name", clash, bystander); err != nil {
		t.Fatal(err)
	}
	e.remove(t, "first-name.json", "second-name.json")
	e.apply(t) // by then the file before it has been read
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(2), want: untouched},
	)

	e.file(t, "second-name", e.named("holder", 3, at(e.Local[0])...))
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(2), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(3), want: by(e.Local[0])},
	)
}

func testServiceMoves(t *testing.T, e *env) {
	s := e.named("moving", 1, at(e.Local[0])...)
	e.file(t, "from", s)
	s.Endpoints = at(e.Local[1])
	if _, err := e.daemon.Write("to", s); err != nil {
		t.Fatal(err)
	}
	e.remove(t, "from.json", "to.json")
	e.file(t, "from")
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[1])})
}

// testTOML: also ports that are several, and what is no more of a range than the number behind it.
func testTOML(t *testing.T, e *env) {
	vip, to := e.vip(1), e.Local[0].Addr()
	text := fmt.Sprintf(`
[[services]]
name      = "toml"
vips      = ["%s", "%s"]
ports     = [{ name = "a", port = 80, protocol = ["tcp", "udp"], target_port = 8080 }, { name = "b", port = "8080-8081", protocol = ["udp", "tcp"] }]
endpoints = ["%s", "%s"]
`, vip.V4, vip.V6, to.V4, to.V6)
	if err := e.daemon.WriteFile("web.toml", text); err != nil {
		t.Fatal(err)
	}
	e.expect(t,
		check{from: e.Client, to: vip, want: by(e.Local[0])},
		check{from: e.Client, to: vip, port: 8080, want: by(e.Local[0])},
		check{from: e.Client, to: vip, port: 8081, want: by(e.Local[0])},
		check{from: e.Client, to: vip, port: 8082, want: refused},
	)
	if err := e.daemon.RemoveFile("web.toml"); err != nil {
		t.Fatal(err)
	}
	e.expect(t, check{from: e.Client, to: vip, want: e.givenUp()})
}

// testSettingsChange: what can change at run time does.
func testSettingsChange(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0]).masked()})
	const base = "mode = \"%s\"\nnode_name = \"node\"\n%s"
	err := e.daemon.Settings(fmt.Sprintf(base, e.mode.name, "masquerade = \"never\"\nnode_port_addresses = [\"all\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0]).keeping()},
		check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: by(e.Local[0]).masked()},
	)
	if err := e.daemon.Settings(fmt.Sprintf(base, e.mode.name, "")); err != nil {
		t.Fatal(err)
	}
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0]).masked()},
		check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: refused},
	)
}
