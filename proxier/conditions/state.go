package conditions

import (
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
)

const (
	// saveTime is the least time between two times that results are written: no more of them
	// is lost when the process is killed.
	saveTime = time.Second

	// saveShare: where there is very much to write, so little of the time is spent on it, as
	// long as that leaves no more than maxSaveTime between two times.
	saveShare   = 20
	maxSaveTime = 10 * time.Second
)

// Keep writes what is known to the state directory whenever it changes, until ctx ends, and
// then once more. It hangs as long as the disk does.
func (k *Keeper) Keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
		case <-k.unsaved:
			if pause(ctx, k.trySave()) {
				continue
			}
		}
		select {
		case <-k.unsaved:
			k.trySave()
		default:
		}
		return nil
	}
}

// trySave writes what is known, and returns how long to wait before that is done again. That it
// cannot is told once; nothing else comes of it.
func (k *Keeper) trySave() time.Duration {
	begin := time.Now()
	err := k.save(!k.drains.empty() || k.unkept.Load())
	if k.file.logOutcome(k.cfg.Log, err); err != nil {
		wake.Once(k.unsaved)
		return maxSaveTime
	}
	return min(max(saveTime, saveShare*time.Since(begin)), maxSaveTime)
}

// Problem returns why a restart will not know the state of endpoints, or that this one did not;
// empty: neither.
func (k *Keeper) Problem() string { return k.file.problem() }

// save writes what is known. Synced, it is on the disk then. A drain that is there already
// has to be on the disk again, since the file takes the place of the one that has it.
func (k *Keeper) save(synced bool) error {
	k.file.mu.Lock()
	defer k.file.mu.Unlock()
	err := k.file.write(k.state(time.Now()), synced)
	if err == nil {
		k.unkept.Store(false)
	}
	return err
}

// state returns what a restart is to know.
func (k *Keeper) state(now time.Time) *state {
	st := &state{Format: format, Drains: &k.drains, Services: make(map[string]map[string]kept)}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	put := func(p endpointKey, e *endpoint, gone bool) {
		if n++; n > mostKept {
			return
		}
		of := st.Services[p.Key.String()]
		if of == nil {
			of = make(map[string]kept)
			st.Services[p.Key.String()] = of
		}
		of[p.at.String()] = keptOf(e, gone)
	}
	for _, down := range []bool{true, false} { // first those that matter most
		for key, s := range k.book.services {
			for at, e := range s.endpoints {
				if (e.result.State == source.CheckFailed) == down {
					put(endpointKey{key, at}, e, false)
				}
			}
		}
	}
	k.book.former.expire(now)
	for p, e := range k.book.former.all {
		put(p, e, !k.book.former.before[p.Key])
	}
	k.file.lost = max(0, n-mostKept)
	return st
}

// restore takes in what an earlier Keeper has written.
func (k *Keeper) restore(now time.Time) {
	st, err := k.file.read()
	st.Drains.rebase(now)
	if k.drains.replace(st.Drains); err == errMissing {
		wake.Once(k.unsaved)
		k.cfg.Log.Warn("the saved endpoint state is lost; drains have ended, and endpoints with a health check are checked first",
			"file", k.file.path, "err", err)
	} else if err != nil {
		wake.Once(k.unsaved) // no file has the drains now
		k.cfg.Log.Warn("part of the saved endpoint state is lost; endpoints with a health check are checked first, and drains may have ended",
			"file", k.file.path, "kept_as", k.file.aside(), "drains", len(k.drains.List()), "err", source.Printable(err.Error()))
	}
	unusable := st.each(func(p endpointKey, e kept) bool {
		it, ok := e.endpoint(now)
		if ok {
			k.book.former.all[p] = it
		}
		if ok && !e.Gone {
			k.book.former.before[p.Key] = true
		}
		return ok
	})
	if len(unusable) > 0 {
		slices.Sort(unusable)
		k.cfg.Log.Warn("part of the saved endpoint state cannot be used", "file", k.file.path,
			"endpoints", len(unusable), "first", source.Excerpt(unusable[0]))
	}
}
