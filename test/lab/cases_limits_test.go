//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"testing"
)

var limitGroups = []group{{
	name:     "limits",
	settings: "[limits]\nfrontends = 26\n",
	cases:    []testCase{{name: "all files together", run: testLimitOfAll}},
}}

// rangeFile is a file of a service whose ports are 8080 to last.
func (e *env) rangeFile(last int, endpoints []Endpoint) string {
	vips, _ := json.Marshal(e.vip(2).Each())
	var addresses []string
	for _, ep := range endpoints {
		addresses = append(addresses, ep.Address.String())
	}
	list, _ := json.Marshal(addresses)
	return fmt.Sprintf(`{"services": [{"name": "%s-range", "vips": %s, "ports": [{"name": "p", "port": "8080-%d", "protocol": ["tcp", "udp"]}], "endpoints": %s}]}`, e.name(), vips, last, list)
}

// testLimitOfAll: up to the limit everything is served. A file with which there would be more stays as it was, others
// go on, and it comes in when there is room.
func testLimitOfAll(t *testing.T, e *env) {
	small := e.named("small", 1, at(e.Local[0])...) // 4 frontends
	e.apply(t, small)
	e.remove(t, "range.json")
	write := func(last int, endpoints []Endpoint) {
		t.Helper()
		if err := e.daemon.WriteFile("range.json", e.rangeFile(last, endpoints)); err != nil {
			t.Fatal(err)
		}
	}
	write(8084, at(e.Local[0])) // 20 more, and 2 of the marker
	e.expect(t, check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[0])})
	write(8085, at(e.Local[1])) // 4 too many
	small.Endpoints = at(e.Local[1])
	e.apply(t, small)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[0])},
	)
	e.apply(t)
	e.expect(t, check{from: e.Client, to: e.vip(2), port: 8080, want: by(e.Local[1])})
}
