//go:build !nokubernetes

package kubernetes

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"svcproxy/source"
	"svcproxy/source/disk"
)

// lastKnownName is the file in the state directory that has what a cluster last
// said: gzip, whose checksum finds what is cut off or damaged, of one JSON value
// a line, a lastKnown and then as many knownUnit as it says.
const lastKnownName = "kubernetes.json.gz"

// lastKnownFormat changes when older files cannot be read any more.
const lastKnownFormat = 1

// What is known is written this long after it changed, and so seldom that it takes
// a hundredth of one processor.
const (
	saveDelay = 5 * time.Second
	saveShare = 100
)

// endWait is how long the end of Run may wait for writes: a daemon that is told to stop
// does so within 1 s.
const endWait = 500 * time.Millisecond

// maxUnits bounds what is read: far more services than a kernel can hold.
const maxUnits = 10_000_000

// A lastKnown says of which cluster, and for whom, the units that follow were.
type lastKnown struct {
	Format    int                 `json:"format"`
	Server    string              `json:"server"`
	ProxyName string              `json:"proxy_name"`
	NodeName  string              `json:"node_name"`
	Written   time.Time           `json:"written"`
	Node      *source.ClusterNode `json:"node"`                    // what it said of this host; nil: nothing
	Ranges    []netip.Prefix      `json:"service_cidrs,omitempty"` // that ClusterIPs come from
	Count     int                 `json:"services"`
	units     []knownUnit
}

// A knownUnit is one service as it was handed on.
type knownUnit struct {
	Created int64           `json:"created"`
	Service *source.Service `json:"service"`
}

// save writes k into dir, so that a power failure leaves what was there before, or k.
func (k *lastKnown) save(dir string) error {
	path := filepath.Join(dir, lastKnownName)
	return disk.Replace(path, path+".new", true, k.write)
}

func (k *lastKnown) write(w io.Writer) error {
	buffer := bufio.NewWriterSize(w, 64<<10)
	zip, err := gzip.NewWriterLevel(buffer, gzip.BestSpeed)
	if err != nil {
		return err
	}
	k.Count = len(k.units)
	lines := json.NewEncoder(zip)
	err = lines.Encode(k)
	for i := 0; err == nil && i < len(k.units); i++ {
		err = lines.Encode(&k.units[i])
	}
	return errors.Join(err, zip.Close(), buffer.Flush())
}

// loadLastKnown returns what is in dir; nil: nothing.
func loadLastKnown(dir string) (*lastKnown, error) {
	f, err := os.Open(filepath.Join(dir, lastKnownName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zip, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	k, err := readLastKnown(zip)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return k, nil
}

func readLastKnown(r io.Reader) (*lastKnown, error) {
	var k lastKnown
	lines := json.NewDecoder(r)
	if err := lines.Decode(&k); err != nil {
		return nil, err
	}
	if k.Format != lastKnownFormat || k.Count < 0 || k.Count > maxUnits {
		return nil, fmt.Errorf("format %d with %d services; want format %d", k.Format, k.Count, lastKnownFormat)
	}
	for range k.Count {
		var u knownUnit
		if err := lines.Decode(&u); err != nil {
			return nil, err
		}
		if u.Service == nil || len(faultsOf(u.Service)) > 0 {
			return nil, errors.New("it holds a service that cannot be used")
		}
		k.units = append(k.units, u)
	}
	if _, err := io.Copy(io.Discard, io.MultiReader(lines.Buffered(), r)); err != nil { // gzip checks at the end
		return nil, err
	}
	return &k, nil
}

// A keeper writes what is known of the cluster, beside the goroutine of Run.
type keeper struct {
	src     *Source
	changed bool
	due     time.Time     // when to write what has changed
	free    chan struct{} // has one element while nothing is being written

	// Of the last write; by who holds what is in free.
	took time.Duration
	said string // why it failed, as warned of; empty: it did not
}

func newKeeper(src *Source) *keeper {
	k := &keeper{src: src, free: make(chan struct{}, 1)}
	k.free <- struct{}{}
	return k
}

// note says that there is something new to write.
func (k *keeper) note() {
	if !k.changed && k.src.StateDir != "" {
		k.changed, k.due = true, later(k.due, time.Now().Add(saveDelay))
	}
}

// save writes what c knows, if that is due and nothing is being written.
func (k *keeper) save(c *cluster, now time.Time) {
	if !k.changed || !c.listed() || now.Before(k.due) {
		return
	}
	select {
	case <-k.free:
	default:
		k.due = now.Add(saveDelay)
		return
	}
	k.changed, k.due = false, now.Add(saveShare*k.took)
	known := c.lastKnown(now)
	k.start(known)
}

// start writes known, by who has taken what is in free.
func (k *keeper) start(known *lastKnown) {
	go func() {
		k.write(known)
		k.free <- struct{}{}
	}()
}

// end writes what is new, unless that would hold up the end: a write that hangs, as on
// a disk that is gone, is left behind.
func (k *keeper) end(c *cluster) {
	enough := time.After(endWait)
	if !k.idle(enough) || !k.changed || !c.listed() || k.took >= endWait {
		return
	}
	k.start(c.lastKnown(time.Now()))
	k.idle(enough)
}

// idle waits until nothing is being written, and reports whether that came first.
func (k *keeper) idle(enough <-chan time.Time) bool {
	select {
	case <-k.free:
		return true
	case <-enough:
		return false
	}
}

func (k *keeper) write(known *lastKnown) {
	begin := time.Now()
	err := known.save(k.src.StateDir)
	k.took = time.Since(begin)
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != k.said {
		k.src.Log.Warn("what the cluster last said cannot be kept for the next start", "err", err)
	}
	k.said = why
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// keepSoon says that there is something new to keep. Before everything has been
// listed, what was last known is better than what is known now.
func (c *cluster) keepSoon() {
	if c.synced {
		c.keeper.note()
	}
}

// lastKnown returns all that was handed on. The present session must have listed
// everything: before, it is of the server of the one before.
func (c *cluster) lastKnown(now time.Time) *lastKnown {
	k := &lastKnown{
		Format: lastKnownFormat, Server: c.server, Written: now,
		ProxyName: c.src.ProxyName, NodeName: c.src.NodeName, Node: c.node, Ranges: c.told,
	}
	for _, e := range c.entries {
		if e.used != nil {
			k.units = append(k.units, knownUnit{e.sent, e.used})
		}
	}
	return k
}

// fallBack serves what was last known, until the API server has been listed. It is
// called once, when that has failed or takes long.
func (c *cluster) fallBack() {
	if c.synced {
		return
	}
	known, err := c.src.recall()
	switch {
	case err != nil:
		c.src.Log.Warn("what the cluster last said cannot be used", "err", err)
	case known != nil:
		c.use(known)
		return
	}
	if c.src.Beside {
		c.src.Log.Warn("nothing is known of the cluster: the other sources go on without it")
		c.sink.Synced(Name)
	}
}

// recall returns what this cluster last said; nil: nothing is known.
func (s *Source) recall() (*lastKnown, error) {
	if s.StateDir == "" {
		return nil, nil
	}
	known, err := loadLastKnown(s.StateDir)
	if known == nil || err != nil {
		return nil, err
	}
	if known.ProxyName != s.ProxyName || known.NodeName != s.NodeName {
		return nil, fmt.Errorf("it is of node %q and proxy name %q", known.NodeName, known.ProxyName)
	}
	if server := s.contact.status().Server; server != "" && known.Server != server {
		return nil, fmt.Errorf("it is of the API server %s", known.Server)
	}
	return known, nil
}

// use hands on what was last known.
func (c *cluster) use(known *lastKnown) {
	var ch source.Changes
	for _, u := range known.units {
		key := u.Service.Key
		e := c.entry(key, true)
		e.used, e.sent = u.Service, u.Created // created is of what this session has heard
		ch.Set = append(ch.Set, unitOf(key, e))
	}
	c.src.Log.Warn("the API server has not been listed: services are as last known", "services", len(ch.Set), "written", known.Written)
	c.src.noteStale(len(ch.Set), known.Written)
	if known.Node != nil {
		c.src.OnNode(known.Node)
	}
	c.sink.Apply(ch)
	if c.told = known.Ranges; len(c.told) > 0 {
		c.src.OnServiceCIDRs(c.told)
	}
	c.sink.Synced(Name)
}
