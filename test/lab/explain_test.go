//go:build netns

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// explainCases is how many packets are compared with what explain says of them, in each
// mode, and explainProbes how many of them with the same services: each question starts
// programs, which take long where the processor is emulated.
var (
	explainCases  = soak(explainProbes, 10_000)
	explainProbes = roundProbes / min(3, int(slowness))
)

// TestExplainAgrees: what explain says of a packet is what the packet meets.
func TestExplainAgrees(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			r := newRandom(t)
			x := &explainer{env: newModeEnv(t, m)}
			x.client.Transport = x.transport()
			start, rounds := time.Now(), 0
			for ; x.met.total() < int64(explainCases) && !t.Failed(); rounds++ {
				if rounds%roundsEach == 0 {
					x.restart(t, pick(r, someSettings...))
				}
				x.round(t, r)
			}
			t.Logf("%d packets in %v: %s", x.met.total(), time.Since(start).Round(time.Second), &x.met)
			for o := range Broken {
				if x.met[o].Load() == 0 && soaking {
					t.Errorf("no packet was %s", o)
				}
			}
		})
	}
}

// An explainer asks explain and then sends the packet.
type explainer struct {
	*env
	client http.Client
	asking sync.Mutex // the daemon answers one question at a time, and lets none wait for long
	met    outcomes
}

func (o *outcomes) total() (n int64) {
	for i := range o {
		n += o[i].Load()
	}
	return n
}

// transport reaches the daemon's control socket.
func (x *explainer) transport() http.RoundTripper {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(x.daemon.Dir, "run", "svcproxy.sock"))
	}}
}

// round applies random services and compares packets with what is said of them.
func (x *explainer) round(t *testing.T, r *rand.Rand) {
	var services []Service
	for i := range byte(roundServices) {
		services = append(services, x.random(r, i))
	}
	x.apply(t, services...)
	var questions []Question
	for range explainProbes {
		questions = append(questions, x.randomQuestion(r))
	}
	x.holds(t, services, questions, func(q *Question) error { return x.compare(*q) })
}

// randomQuestion is a random probe with a source that is known beforehand.
func (x *explainer) randomQuestion(r *rand.Rand) Question {
	q := x.randomProbe(r, 0)
	if !q.Source.IsValid() {
		q.Source = q.From.Addrs[r.IntN(len(q.From.Addrs))].Each()[map[bool]int{true: 1}[q.To.Addr().Is6()]]
	}
	return q
}

// compare reports where a packet meets something else than was said.
func (x *explainer) compare(q Question) error {
	said, err := x.ask(q)
	if err != nil {
		return err
	}
	got := Ask(q)
	x.met[got.Outcome].Add(1)
	if !x.agrees(q, said, got) {
		return fmt.Errorf("%s: %s; explain: %s: %s %+v", q, got, said.Outcome, said.Verdict, said.Endpoints)
	}
	return nil
}

// ask asks the daemon what becomes of a packet.
func (x *explainer) ask(q Question) (said explanation, err error) {
	query := url.Values{
		"source": {q.Source.String()}, "destination": {q.To.Addr().String()},
		"port": {strconv.Itoa(int(q.To.Port()))}, "protocol": {q.Protocol.String()},
	}
	x.asking.Lock()
	defer x.asking.Unlock()
	resp, err := x.client.Get("http://svcproxy/v1/explain?" + query.Encode())
	if err != nil {
		return said, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return said, fmt.Errorf("explain %s: %s: %s", q, resp.Status, text)
	}
	return said, json.NewDecoder(resp.Body).Decode(&said)
}

// agrees reports whether a packet met what was said of it.
func (x *explainer) agrees(q Question, said explanation, got Answer) bool {
	switch said.Outcome {
	case "refused":
		return got.Outcome == Refused
	case "dropped":
		return got.Outcome == Dropped
	case "untouched":
		if x.Node.Owns(q.To.Addr()) { // the node itself answers, where nothing listens
			return got.Outcome == Refused
		}
		return got.Outcome == Untouched
	}
	if !said.Works && !strings.HasPrefix(said.Verdict, "works for") {
		return got.Outcome == Dropped || got.Outcome == Refused
	}
	return got.Outcome == Answered && slices.ContainsFunc(said.Endpoints, func(e struct {
		Address    netip.AddrPort
		Masquerade bool
		Source     netip.Addr
	}) bool {
		return x.hostOf(e.Address.Addr()) == got.By && e.Address.Port() == got.Port && e.Source == got.Source
	})
}

// hostOf returns the role of the host that has an address.
func (x *explainer) hostOf(a netip.Addr) string {
	for _, h := range x.hosts() {
		if h.Owns(a) {
			return h.Role
		}
	}
	return ""
}
