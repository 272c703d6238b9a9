package healthcheck

// A lane is how many probes of a kind are under way, and which ones wait. Questions
// whose last probe was slow get at most three quarters of the slots: however many
// endpoints are dead, the others are asked on time.
type lane struct {
	slots, slowSlots int
	busy, slowBusy   int
	fast, slow       []*entry // that are due and have no slot yet, the longest first
}

func newLane(slots int) lane { return lane{slots: slots, slowSlots: max(1, slots*3/4)} }

// put has a question wait for its turn.
func (l *lane) put(e *entry) {
	list := &l.fast
	if e.slow {
		list = &l.slow
	}
	*list = append(*list, e)
}

// next returns the question whose turn it is, and takes a slot for it; nil: none waits, or all slots are taken.
func (l *lane) next() *entry {
	if l.busy >= l.slots {
		return nil
	}
	from, e := &l.fast, front(&l.fast)
	if s := front(&l.slow); s != nil && l.slowBusy < l.slowSlots && (e == nil || s.due.Before(e.due)) {
		from, e = &l.slow, s
	}
	if e != nil {
		*from = (*from)[1:]
		l.take(e.slow, 1)
	}
	return e
}

// take takes n more slots.
func (l *lane) take(slow bool, n int) {
	l.busy += n
	if slow {
		l.slowBusy += n
	}
}

// front returns the first question that is still watched; the others before it are dropped.
func front(list *[]*entry) *entry {
	for ; len(*list) > 0; *list = (*list)[1:] {
		if e := (*list)[0]; e.users > 0 {
			return e
		}
	}
	return nil
}
