//go:build !nokubernetes

package kubernetes

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// A list that lacks what was known may be of an API server whose database was lost, or of one that is not
// itself yet. It is held (remote.Answer says when): nothing more is handed on or kept, as before the first
// list, and the API server is listed again from time to time.

// heldPoll is how often an API server is listed again while one of its lists is held.
const heldPoll = 30 * time.Second

// admitTime is for how long every list is used after the operator has confirmed one.
const admitTime = time.Minute

// ownService is what an API server makes for itself. One that has nothing else is empty.
var ownService = source.Key{Namespace: "default", Name: "kubernetes"}

// A listing is all that an API server has of a kind.
type listing struct {
	kind     kind
	services map[source.Key]bool // that they are of; nil: of none
	version  uint64              // 0: not known
	step     step                // has them used
}

// hear has an event used, or held with the list before it.
func (c *cluster) hear(k kind, version uint64, st step) {
	if h := c.held[k]; h != nil {
		h.version = max(h.version, version)
		h.steps = append(h.steps, st)
		return
	}
	c.newest[k] = max(c.newest[k], version)
	st(c)
}

// list has a list used, or held.
func (c *cluster) list(l listing) {
	k := l.kind
	if why := c.doubt(l); why != "" {
		c.held[k], c.heard[k] = &heldList{l.version, []step{l.step}}, false
		c.src.Hold(int(k), why)
		return
	}
	if k == nodes && len(l.services) == 0 && c.node != nil && c.listed() {
		c.heard = [kinds]bool{} // whether the API server is empty, the other lists say
		c.src.askAgain()
	}
	if c.held[k] != nil {
		delete(c.held, k)
		c.src.Release(int(k))
	}
	c.take(k, l.version, l.step)
}

// take has a list used, and the events that followed it.
func (c *cluster) take(k kind, version uint64, steps ...step) {
	if version != 0 {
		c.newest[k] = version
	}
	for _, st := range steps {
		st(c)
	}
}

// release has all that is held used, and reports whether anything was held. So are lists for some time from now on:
// the present session may not have listed all kinds yet.
func (c *cluster) release() (some bool) {
	for k, h := range c.held {
		some = true
		delete(c.held, k)
		c.src.Release(int(k))
		if len(h.steps) == 0 {
			c.src.askAgain()
		}
		c.take(k, h.version, h.steps...)
	}
	if some {
		c.admits = time.Now().Add(admitTime)
	}
	return some
}

// doubt returns why a list is to be held; empty: it is to be used.
func (c *cluster) doubt(l listing) string {
	if l.kind == nodes || int(l.kind) >= kinds || time.Now().Before(c.admits) || c.src.AllowsEmpty() {
		return ""
	}
	a := remote.Answer{Version: l.version, Newest: c.newest[l.kind]}
	for key := range l.services {
		if key != ownService {
			a.Lists++
		}
	}
	if a.Lists > 0 && a.Version >= a.Newest {
		return ""
	}
	c.eachKnown(func(s *source.Service) {
		if s.Key == ownService || l.kind == endpointSlices && len(s.Endpoints) == 0 {
			return
		}
		a.Known++
		if !l.services[s.Key] {
			a.Lacks++
		}
	})
	return a.Doubt(l.kind.String())
}

// eachKnown visits the services that were handed on or, before that, those of the state directory.
func (c *cluster) eachKnown(visit func(*source.Service)) {
	some := false
	for _, e := range c.entries.all {
		if e.used.Service != nil {
			some = true
			visit(e.used.Service)
		}
	}
	if some || c.synced {
		return
	}
	_, services, err := c.src.recall()
	if err != nil {
		return // fallBack says why
	}
	for _, h := range services {
		visit(h.Service)
	}
}

// Confirm implements remote.Confirmer.
func (s *Source) Confirm(ctx context.Context) (some bool, err error) {
	done := make(chan bool, 1)
	select {
	case s.commands <- func(c *cluster) { done <- c.release() }:
		return <-done, nil
	case <-ctx.Done():
		return false, fmt.Errorf("asking the source %s: %w", Name, ctx.Err())
	}
}

var _ remote.Confirmer = (*Source)(nil)

// versionOf reads a resource version. API servers before 1.35 do not promise that it is a number, and it is one.
func versionOf(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
