package keep

import (
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source/read"
)

// An Entry is a record to be written.
type Entry struct {
	Record
	Version *read.Version // nil: the file was removed
	Was     *read.Version // in use before, for the history; nil: none, or not known
}

// A change is an Entry on its way to the disk.
type change struct {
	Entry
	name  string
	data  []byte // of the version
	old   Record // what it replaces
	taken bool   // the goroutine of Run is about to record it
	kept  bool   // it is what is recorded: it came back while another one waited
}

// A syncing is what the disk is asked for.
type syncing struct {
	files    map[string]*change // by name
	replaced map[Version]bool   // what goes once the disk has these

	err, history error // why it does not say that it has these, and the index of the history
}

// A queue has what is not on the disk yet. Its methods do not wait.
type queue struct {
	*records
	wakeups chan struct{} // holds something when writeMore has work

	pending map[string]*change // not written yet, by file name
	texts   map[string][]byte  // the same of what is beside the index, by the name of that file

	written  map[string]*change // what is written and may not be on the disk, by file name
	replaced map[Version]bool   // what that replaces, whose copies go once the disk has it
	syncing  *syncing           // what the disk is asked for; nil: nothing
	needs    map[Version]bool   // that decisions name
	unkept   map[Version][]byte // the texts of those whose copies are written before decisions
	retained map[Version]bool   // copies that decisions need, whatever the index says
}

// Pending reports whether anything is not written yet.
func (q *queue) Pending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)+len(q.texts) > 0
}

// OnDisk reports whether the disk has all that the store was given.
func (q *queue) OnDisk() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)+len(q.texts)+len(q.written) == 0 && q.syncing == nil
}

// Put takes what is to be recorded, by file name, for writeMore: who calls it has
// something to do that is more urgent. What cannot be written is kept for retry.
func (q *queue) Put(entries map[string]Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, e := range entries {
		p := q.pending[name]
		if p == nil && q.has(name, e) {
			e.releaseText()
			continue
		}
		c := &change{Entry: e, name: name}
		if e.Version != nil {
			c.data = e.Version.Data
		}
		if p != nil && p.Sum == e.Sum && c.data == nil { // a copy that is missing, of rewriteCopy
			c.data = p.data
		}
		if p != nil && !p.taken {
			c.Was = p.Was // which is on the disk, or about to be
		}
		q.pending[name] = c
		q.wake()
	}
}

// has reports whether e is recorded already.
func (q *queue) has(name string, e Entry) bool {
	r, ok := q.known[name]
	return r.Sum == e.Sum && ok == (e.Version != nil) && !q.damaged[name]
}

// releaseText lets go of the text of e, which is kept.
func (e Entry) releaseText() {
	if e.Version != nil {
		e.Version.Data = nil
	}
}

func (q *queue) wake() { wake.Once(q.wakeups) }

// What is beside the index.
const (
	decisionsFile = "decisions"
	directoryFile = "directory"
)

// PutDirectory takes what is to be kept of the directory of files, or of the server that has them, for writeMore.
func (q *queue) PutDirectory(text []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.texts[directoryFile] = text
	q.wake()
}

// PutDecisions takes what is to be kept of decisions, for writeMore, and the versions that these
// need, whose copies stay. Those in texts may have no copy yet: it is written first. A text of nil is on the disk already.
func (q *queue) PutDecisions(text []byte, needs map[Version]bool, texts map[Version][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.needs, q.unkept = needs, texts; text != nil {
		q.texts[decisionsFile] = text
	}
	q.wake()
}

// Decided reports whether decisions are written as they were last put.
func (q *queue) Decided() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.texts[decisionsFile] == nil
}

// needed returns the versions that decisions name.
func (q *queue) needed() map[Version]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.needs
}

// batch is how many files are written in one go.
const batch = 64

// next returns some of what is pending. A file waits for its lists: what is recorded of a service fits the list that is, or
// decisions name the one that it keeps.
func (q *queue) next() []*change {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes := make([]*change, 0, batch)
	for name, c := range q.pending {
		if q.waits(c) {
			continue
		}
		c.old, c.taken, c.kept = q.known[name], true, q.has(name, c.Entry)
		if changes = append(changes, c); len(changes) == batch {
			break
		}
	}
	return changes
}

// waits reports whether c refers to a list that is not written yet. The caller holds q.mu.
func (q *queue) waits(c *change) bool {
	if c.Version != nil {
		for list := range c.Version.Lists {
			if q.pending[list] != nil {
				return true
			}
		}
	}
	return false
}

// endWriting notes which of the changes that next returned are written. The others stay pending.
func (q *queue) endWriting(changes, written []*change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range changes {
		c.taken = false
	}
	for _, c := range written {
		if c.Removed() {
			delete(q.known, c.name)
		} else {
			q.known[c.name] = c.Record
		}
		delete(q.damaged, c.name)
		if q.pending[c.name] == c { // else it has changed again
			delete(q.pending, c.name)
			c.releaseText()
		}
		q.written[c.name] = c
		if !c.old.Removed() && copyName(c.name, c.old.Sum) != copyName(c.name, c.Sum) {
			q.replaced[Version{c.name, c.old.Sum}] = true
		}
	}
}

// counts reports whether a version is recorded or about to be, or what a start may find while the disk
// does not have another. The caller holds q.mu.
func (q *queue) counts(v Version) bool {
	p := q.pending[v.Name]
	return q.known[v.Name].Sum == v.Sum || p != nil && p.Sum == v.Sum || q.replaced[v] || q.syncing != nil && q.syncing.replaced[v]
}

// unneeded returns those of versions that do not count. What decisions need of them is retained instead.
func (q *queue) unneeded(versions map[Version]bool) (list []Version) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for v := range versions {
		switch {
		case q.counts(v):
		case q.needs[v] || q.retained[v]:
			q.retained[v] = true
		default:
			list = append(list, v)
		}
	}
	return list
}

// missing returns the copies that are to be written before decisions.
func (q *queue) missing() map[Version][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := make(map[Version][]byte)
	for v, text := range q.unkept {
		if q.texts[decisionsFile] != nil && !q.retained[v] {
			list[v] = text
		}
	}
	return list
}

// retain keeps a copy until decisions that do not need it are written.
func (q *queue) retain(v Version) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retained[v] = true
}

// takeRetained returns what was retained, and retains nothing.
func (q *queue) takeRetained() map[Version]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	retained := q.retained
	q.retained = map[Version]bool{}
	return retained
}
