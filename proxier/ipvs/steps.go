package ipvs

import (
	"context"
	"errors"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// recordPlanned records what is about to be done: which servers will be ours, and which
// destinations drain. A server that cannot be recorded is not added; everything else
// continues.
func (b *Backend) recordPlanned(claimed []lvs.Key, d *difference, servers map[lvs.Key]*server, errs *failures) {
	b.unsent = map[lvs.Key]struct{}{}
	for _, s := range d.first {
		if s.op == addServer {
			b.unsent[s.key] = struct{}{}
		}
	}
	for _, key := range claimed {
		b.record.own(key)
	}
	for _, c := range d.drained {
		b.record.drained(c)
	}
	err := b.record.flush()
	if err == nil {
		return
	}
	errs.add(err)
	for _, key := range claimed {
		b.record.disown(key)
		delete(servers, key)
		b.refused[key] = refusal{err: err}
	}
}

// disownUnsent gives up servers that a Sync did not get to add: by the next one, another
// program may have added them.
func (b *Backend) disownUnsent() {
	for key := range b.unsent {
		b.record.disown(key)
	}
	b.unsent = nil
}

// runSteps sends steps that lead to servers, which it corrects if the kernel refuses
// one. It skips steps of servers that could not be added.
func (b *Backend) runSteps(ctx context.Context, steps []step, servers map[lvs.Key]*server, errs *failures) {
	for _, s := range steps {
		if s.op != deleteServer && servers[s.key] == nil {
			continue
		}
		if ctx.Err() != nil {
			errs.add(ctx.Err())
			return
		}
		delete(b.unsent, s.key)
		if s.op == addDest {
			s.srv = servers[s.key]
		}
		err := s.do(ctx, b.conn)
		if err != nil {
			s.undo(servers)
		}
		errs.add(b.recordResult(s, err))
		proxier.Progressed(ctx)
	}
}

// runLast runs the steps that end connections, and then removes what guarded their frontends until now.
// After an error that stays: some may still be balanced, and everything is compared next.
func (b *Backend) runLast(ctx context.Context, steps []step, servers map[lvs.Key]*server, guards *layout.Changes, errs *failures) {
	b.runSteps(ctx, steps, servers, errs)
	if errs.n == 0 && guards != nil && len(guards.Lost) > 0 {
		errs.add(b.kernel.Apply(ctx, guards, b.rules))
	}
}

// recordResult records the result of a step, and returns its error if a retry may
// succeed. A server is ours until it is known to be removed, or never to have been added.
func (b *Backend) recordResult(s step, err error) error {
	switch {
	case s.op == deleteServer && err == nil:
		b.record.disown(s.key)
	case s.op == addServer && errors.Is(err, lvs.ErrExist): // another program added it first
		b.record.disown(s.key)
		b.refused[s.key] = foreignServer(s.srv.name, s.key)
		return b.record.flush() // at once: it must never be removed as if it were ours
	case errors.Is(err, lvs.ErrNoServer): // the next one that another program adds there is not ours
		b.record.disown(s.key)
	case errors.Is(err, lvs.ErrRefused): // other servers, and other destinations of this one, are unaffected
		if s.op == addServer {
			b.record.disown(s.key)
		}
		b.refused[s.key] = refusal{err: err}
		return nil
	}
	return err
}
