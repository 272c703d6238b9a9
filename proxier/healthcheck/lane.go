package healthcheck

// A lane is how many probes of a kind are under way, and which ones wait. Questions
// whose last probe was slow get at most three quarters of the slots: however many
// endpoints are dead, the others are asked on time.
type lane struct {
	slots, slowSlots int
	busy, slowBusy   int
	fast, slow       waiting
}

// waiting are questions that are due and have no slot yet, the longest first.
type waiting struct {
	entries []*entry
	head    int
}

func newLane(slots int) lane { return lane{slots: slots, slowSlots: max(1, slots*3/4)} }

// put has a question wait for its turn.
func (l *lane) put(e *entry) {
	if e.slow {
		l.slow.put(e)
		return
	}
	l.fast.put(e)
}

// next returns the question whose turn it is, and takes a slot for it; nil: none waits, or all slots are taken.
func (l *lane) next() *entry {
	if l.busy >= l.slots {
		return nil
	}
	from := &l.fast
	if s, f := l.slow.front(), l.fast.front(); s != nil && l.slowBusy < l.slowSlots && (f == nil || s.due.Before(f.due)) {
		from = &l.slow
	}
	e := from.take()
	if e != nil {
		l.busy++
		l.slowBusy += one(e.slow)
	}
	return e
}

// done gives the slot of a probe back. Slow is what it was when it began.
func (l *lane) done(slow bool) {
	l.busy--
	l.slowBusy -= one(slow)
}

func (w *waiting) put(e *entry) { w.entries = append(w.entries, e) }

// front returns the first one that is still watched.
func (w *waiting) front() *entry {
	for w.head < len(w.entries) {
		if e := w.entries[w.head]; e.users > 0 {
			return e
		}
		w.drop()
	}
	return nil
}

func (w *waiting) take() *entry {
	e := w.front()
	if e != nil {
		w.drop()
	}
	return e
}

// drop removes the first one. The list does not grow with what was removed.
func (w *waiting) drop() {
	w.entries[w.head] = nil
	w.head++
	if w.head*2 >= len(w.entries) {
		n := copy(w.entries, w.entries[w.head:])
		clear(w.entries[n:])
		w.entries, w.head = w.entries[:n], 0
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
