package ipvs

import (
	"context"
	"errors"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
)

// recordPlanned records what is about to be done: which servers will be ours, and which
// destinations drain. A server that cannot be recorded is not added; everything else
// continues.
func (o *owner) recordPlanned(claimed []lvs.Key, d *difference, servers map[lvs.Key]*server, errs *proxier.Failures) {
	o.unsent = map[lvs.Key]struct{}{}
	for _, s := range d.first {
		if s.op == addServer {
			o.unsent[s.key] = struct{}{}
		}
	}
	for _, key := range claimed {
		o.record.own(key)
	}
	for _, c := range d.drained {
		o.record.drained(c)
	}
	err := o.record.flush()
	if err == nil {
		return
	}
	errs.Add(err)
	for _, key := range claimed {
		o.record.disown(key)
		delete(servers, key)
		o.refused[key] = refusal{err: err}
	}
}

// disownUnsent gives up servers that a Sync did not get to add: by the next one, another
// program may have added them.
func (o *owner) disownUnsent() {
	for key := range o.unsent {
		o.record.disown(key)
	}
	o.unsent = nil
}

// runSteps sends steps that lead to servers, which it corrects if the kernel refuses
// one. It skips steps of servers that could not be added.
func (o *owner) runSteps(ctx context.Context, steps []step, servers map[lvs.Key]*server, errs *proxier.Failures) {
	for _, s := range steps {
		if s.op != deleteServer && servers[s.key] == nil {
			continue
		}
		if ctx.Err() != nil {
			errs.Add(ctx.Err())
			return
		}
		delete(o.unsent, s.key)
		if s.op == addDest {
			s.srv = servers[s.key]
		}
		err := s.do(ctx, o.conn)
		if err != nil {
			s.undo(servers)
		}
		errs.Add(o.recordResult(s, err))
		proxier.Progressed(ctx)
	}
}

// recordResult records the result of a step, and returns its error if a retry may
// succeed. A server is ours until it is known to be removed, or never to have been added.
func (o *owner) recordResult(s step, err error) error {
	switch {
	case s.op == deleteServer && err == nil:
		o.record.disown(s.key)
	case s.op == addServer && errors.Is(err, lvs.ErrExist): // another program added it first
		o.record.disown(s.key)
		o.refused[s.key] = foreignServer(s.srv.name, s.key)
		return o.record.flush() // at once: it must never be removed as if it were ours
	case errors.Is(err, lvs.ErrNoServer): // the next one that another program adds there is not ours
		o.record.disown(s.key)
	case errors.Is(err, lvs.ErrRefused): // other servers, and other destinations of this one, are unaffected
		if s.op == addServer {
			o.record.disown(s.key)
		}
		o.refused[s.key] = refusal{err: err}
		return nil
	}
	return err
}
