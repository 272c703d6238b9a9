package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// A supply is where services come from in an episode.
type supply struct {
	name    string
	sources string           // as in the settings
	stored  func(i int) bool // whether the i-th service is in the store; else it is in a file
}

// supplies are drawn; files half of the time.
var supplies = []supply{fromFiles, fromFiles,
	{"services from a store", `["http"]`, func(int) bool { return true }},
	{"services from files and a store", `["file", "http"]`, func(i int) bool { return i%3 > 0 }},
}

var fromFiles = supply{"services from files", `["file"]`, func(int) bool { return false }}

// Times of [http], see storeSettings.
const (
	polling      = 220 * time.Millisecond // an interval and a tenth of it
	storeTimeout = time.Second

	// torn is how long svcproxy waits, as docs/fleet.md says, where parts of an answer are of two versions.
	torn = 300 * time.Millisecond
)

const storeSettings = `[http]
urls = [%q]
interval = "200ms"
timeout = "1s"
`

// A stock is the store of a site, and what it is to have.
type stock struct {
	supply
	store  *lab.Store
	signed bool

	// disk is held while the state directory cannot be written, and while the store does wrong: what was accepted of the store
	// is on the disk by then, or a start without the store could not know it.
	disk sync.Mutex

	publishing sync.Mutex // held while the store does wrong; guards the rest. After disk
	texts      map[string]string
	now        lab.Pages   // of texts
	past       []lab.Pages // of versions before, the newest last
}

// settings are those of the sources.
func (k *stock) settings() string {
	if k.sources == fromFiles.sources {
		return ""
	}
	text := fmt.Sprintf(storeSettings, lab.IndexURL)
	if k.signed {
		text += fmt.Sprintf("public_key = %q\n", k.store.Public)
	}
	return text
}

// has reports whether the service of a name is in the store.
func (k *stock) has(name string) bool {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "svc-"))
	return err == nil && k.stored(i)
}

// publish gives the store another text of a service; empty: none.
func (k *stock) publish(name, text string) {
	k.publishing.Lock()
	defer k.publishing.Unlock()
	k.set(name, text)
	k.now = k.store.Publish(k.texts)
}

// mostPast is how many versions are kept: those that Arrange publishes, one service after the other, are soon gone.
const mostPast = 12

// set has the next version have another text, and keeps the one of before if that was another.
func (k *stock) set(name, text string) {
	if k.now != nil && k.texts[name] != text {
		k.past = append(k.past, k.now)
	}
	k.past = k.past[max(0, len(k.past)-mostPast):]
	if k.texts[name] = text; text == "" {
		delete(k.texts, name)
	}
}

// Arrange has services come from where the seed says, and the lanes be of what can happen there.
func (p *Svcproxy) Arrange(s *Site, seed uint64) (what string, err error) {
	r := rand.New(rand.NewPCG(seed, 1))
	var drawn []supply
	for _, s := range supplies {
		drawn = append(drawn, slices.Repeat([]supply{s}, weight(s.name))...)
	}
	next := pick(r, drawn...)
	signed := r.IntN(4) > 0
	if next.name == p.name && signed == p.signed || next.name == p.name && next.name == fromFiles.name {
		return next.name, nil
	}
	if p.Running() {
		err = p.Stop()
	}
	for i := range s.Kinds {
		if e := os.Remove(p.path(serviceName(i))); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	p.supply, p.signed, p.texts, p.now, p.past = next, signed, map[string]string{}, nil, nil
	s.Lanes = p.Lanes()
	return next.name, errors.Join(err, p.Forget(), p.use("", ""), s.PutAll(), p.Start())
}

// takes is how long svcproxy may take for a change of a service, beside its reaction.
func (k *stock) takes(name string) time.Duration {
	if k.has(name) {
		return polling + torn
	}
	return 0
}

// numbers returns those of the services that are in the store, or in files.
func (k *stock) numbers(stored bool) (list []int) {
	for i := range Kinds {
		if k.stored(i) == stored {
			list = append(list, i)
		}
	}
	return list
}

// storeFaults are what a store does wrong.
func (p *Svcproxy) storeFaults() (lane Lane) {
	add := func(name string, begin func(*Nemesis) (end func() error, err error)) {
		lane = append(lane, Fault{Name: "store: " + name, Do: func(n *Nemesis) error { return p.wrong(n, n.r.IntN(2) == 0, begin) }})
	}
	for _, f := range lab.StoreFaults {
		if !f.Old || p.signed {
			add(f.Name, func(n *Nemesis) (func() error, error) { f.Begin(p.store, pick(n.r, p.past...), p.now); return nil, nil })
		}
	}
	add("gone", p.goneStore)
	add("silent", p.silentStore)
	add("restarts empty", func(n *Nemesis) (func() error, error) {
		p.store.Stop()
		n.pause(50*time.Millisecond, 500*time.Millisecond)
		p.store.Publish(nil)
		return nil, p.store.Start(p.node)
	})
	add("slow", func(n *Nemesis) (func() error, error) {
		d, pages := time.Duration(100+n.r.IntN(1200))*time.Millisecond, p.now
		p.store.Serve(pages, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(d):
				pages.ServeHTTP(w, r)
			}
		})
		return nil, nil
	})
	return lane
}

// goneStore has connections to the store refused.
func (p *Svcproxy) goneStore(*Nemesis) (end func() error, err error) {
	p.store.Stop()
	return func() error { return p.store.Start(p.node) }, nil
}

// silentStore has nothing that is sent to the store arrive.
func (p *Svcproxy) silentStore(n *Nemesis) (end func() error, err error) {
	const table = "inet silent"
	err = n.nft("table " + table + " { chain c { type filter hook input priority 0; ip daddr 127.0.0.1 tcp dport " + lab.StorePort + " drop; }; }")
	return func() error { return unlessMissing(n.nft("delete table " + table)) }, err // the other lane may have flushed all rules
}

// restartWithout ends svcproxy, and starts it while the store is gone or useless, now and then with a full state directory.
func (p *Svcproxy) restartWithout(n *Nemesis) error {
	return p.wrong(n, false, func(n *Nemesis) (func() error, error) {
		useless := func(*Nemesis) (func() error, error) { lab.StoreFaults[0].Begin(p.store, nil, p.now); return nil, nil }
		d := pace.Scale(reaction)
		n.pause(d, d+time.Millisecond) // what was accepted is on the disk by then
		end, err := pick(n.r, p.goneStore, p.silentStore, useless)(n)
		empty := func() error { return nil }
		if n.r.IntN(3) == 0 {
			var full error
			empty, full = p.fill()
			err = errors.Join(err, full)
		}
		err = errors.Join(err, n.away(pick(n.r, n.Kill, n.Stop)))
		return func() error {
			err := empty()
			if end != nil {
				err = errors.Join(err, end())
			}
			return err
		}, err
	})
}

// wrong has the store do wrong for a while: begin does it, and end, if it is not nil, ends what is more than other answers.
// Services stay as they are during the fault. With a change, the store has just received another version of one service,
// which takes effect once the store works again.
func (p *Svcproxy) wrong(n *Nemesis, change bool, begin func(*Nemesis) (end func() error, err error)) error {
	p.disk.Lock()
	defer p.disk.Unlock()
	p.publishing.Lock()
	defer p.publishing.Unlock()
	if err := p.settle(n); err != nil {
		return err
	}
	do := func() error {
		version := p.store.Version()
		end, err := begin(n)
		n.linger(50*time.Millisecond, 1500*time.Millisecond)
		if end != nil {
			err = errors.Join(err, end())
		}
		p.now = p.store.Restore(p.now, version)
		return err
	}
	var err error
	if change {
		svc := n.version(n.r, pick(n.r, p.numbers(true)...), n.someHosts())
		n.versions[svc.Name] = svc
		err = n.Services[svc.Name].Change(n.model(svc), n.takes(svc.Name)+storeTimeout, func() error {
			text, err := fileText(svc)
			p.set(fileName(svc.Name), text)
			p.now = p.store.Make(p.texts)
			return errors.Join(err, do())
		})
	} else {
		err = do()
	}
	return errors.Join(err, p.asked(1)) // or an answer that is on its way would delay the next change
}

// settle waits until svcproxy has taken what the store has. A version of its own makes it write again what it could not
// write to a full disk.
func (p *Svcproxy) settle(n *Nemesis) error {
	p.now = p.store.Publish(p.texts)
	err := p.asked(2) // the second request comes after the answer to the first
	n.pause(100*time.Millisecond, 200*time.Millisecond)
	return err
}

// asked waits until the store was asked so many times more. svcproxy may be ended, frozen, or waiting for its turn.
func (p *Svcproxy) asked(times int) error {
	until := p.store.Polls() + times
	return pace.Poll(storePatience, func() error {
		if polls := p.store.Polls(); polls < until {
			return fmt.Errorf("svcproxy has not asked the store %d times within %v", times, storePatience)
		}
		return nil
	})
}

const storePatience = 30 * time.Second
