package ipvs

import (
	"context"
	"errors"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// note records what is about to be done: which servers will be ours, and which
// destinations drain. A server that cannot be recorded is not made; everything
// else goes on.
func (b *Backend) recordPlanned(claimed []lvs.Key, drained []drainChange, servers map[lvs.Key]*server, errs *failures) {
	for _, key := range claimed {
		b.record.own(key)
	}
	for _, c := range drained {
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

// plans notes the servers that steps make.
func (b *Backend) noteUnsent(steps []step) {
	b.unsent = map[lvs.Key]struct{}{}
	for _, s := range steps {
		if s.op == addServer {
			b.unsent[s.key] = struct{}{}
		}
	}
}

// disownUnsent gives up the servers that a Sync did not come to make: by the next
// somebody else may have made them.
func (b *Backend) disownUnsent() {
	for key := range b.unsent {
		b.record.disown(key)
	}
	b.unsent = nil
}

// run sends steps that lead to servers, which it corrects where the kernel refuses
// one. Those about a server that could not be made are left out.
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

// learn follows what became of a step, and returns an error that another try may
// end. A server is ours until it is known to be gone, or never to have been made.
func (b *Backend) recordResult(s step, err error) error {
	switch {
	case s.op == deleteServer && err == nil:
		b.record.disown(s.key)
	case s.op == addServer && errors.Is(err, lvs.ErrExist): // another program was faster
		b.record.disown(s.key)
		b.refused[s.key] = foreignServer(s.srv.name, s.key)
		return b.record.flush() // at once: it must never be removed as ours
	case errors.Is(err, lvs.ErrNoServer): // the next that somebody makes there is not ours
		b.record.disown(s.key)
	case errors.Is(err, lvs.ErrRefused): // the other servers, and destinations of this one, are served
		if s.op == addServer {
			b.record.disown(s.key)
		}
		b.refused[s.key] = refusal{err: err}
		return nil
	}
	return err
}
