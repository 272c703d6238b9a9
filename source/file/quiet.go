package file

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy/source"
)

// A text that is cut off can be valid, so what takes something away may be half
// written, and waits. It waits for its own file only: each has its own time.

// mayBePartial reports whether v, found where old was accepted, may be what is there
// of a text so far. beginning: its text is a beginning of old's; placed: it was
// renamed into its place, and so is whole.
func mayBePartial(old, v *version, beginning, placed bool) bool {
	return !placed && (v.broken || beginning || old.exceeds(v))
}

// exceeds reports whether something of v is not in o: a service, an endpoint, an
// address or a port, or what keeps clients from a service.
func (v *version) exceeds(o *version) bool {
	have := byKey(o.services)
	return slices.ContainsFunc(v.services, func(s *source.Service) bool {
		is, ok := have[s.Key]
		return !ok || less(is, s) || opens(is, s)
	})
}

// less reports whether s has fewer of something than it had.
func less(s, was *source.Service) bool {
	return len(s.Endpoints) < len(was.Endpoints) || len(s.Ports) < len(was.Ports) || len(s.VIPs) < len(was.VIPs) ||
		len(s.ExternalIPs) < len(was.ExternalIPs) || len(s.LoadBalancerIPs) < len(was.LoadBalancerIPs)
}

// opens reports whether s lacks a restriction that it had.
func opens(s, was *source.Service) bool {
	return len(s.LoadBalancerSourceRanges) == 0 && len(was.LoadBalancerSourceRanges) > 0 ||
		s.InternalTrafficPolicy < was.InternalTrafficPolicy || s.ExternalTrafficPolicy < was.ExternalTrafficPolicy ||
		s.HealthCheckNodePort == 0 && was.HealthCheckNodePort != 0
}

// frees reports whether v claims something that o does not: another file may be about to.
func (v *version) frees(o *version) bool {
	have := byKey(o.services)
	return slices.ContainsFunc(v.services, func(s *source.Service) bool {
		is, ok := have[s.Key]
		return !ok || !holds(is.VIPs, s.VIPs) || !holds(is.ExternalIPs, s.ExternalIPs) || !holds(is.LoadBalancerIPs, s.LoadBalancerIPs) ||
			!holds(reached(is), reached(s)) || is.HealthCheckNodePort != s.HealthCheckNodePort
	})
}

// reached returns the ports of a service as far as clients see them.
func reached(s *source.Service) []source.Port {
	ports := slices.Clone(s.Ports)
	for i := range ports {
		ports[i].Name, ports[i].TargetPort = "", 0
	}
	return ports
}

// holds reports whether all of some are in list.
func holds[T comparable](list, some []T) bool {
	if slices.Equal(list, some) {
		return true
	}
	in := make(map[T]bool, len(list))
	for _, x := range list {
		in[x] = true
	}
	return !slices.ContainsFunc(some, func(x T) bool { return !in[x] })
}

func byKey(services []*source.Service) map[source.Key]*source.Service {
	m := make(map[source.Key]*source.Service, len(services))
	for _, s := range services {
		m[s.Key] = s
	}
	return m
}

// judge finds out what take needs to know of a version that is new.
func (s *Source) judge(p *probe) {
	f := p.f
	if p.v == nil || p.v == gone || p.v == f.seen || p.v == f.used || p.v == p.good {
		return
	}
	p.placed = p.placed || f.stamp != (stamp{}) && p.replaced()
	p.frees = !p.v.broken && f.used != nil && f.used.frees(p.v)
	for _, old := range []*version{f.used, p.accepted, p.good} {
		if old != nil {
			p.partial = p.partial || mayBePartial(old, p.v, s.begins(f, p.v, old), p.placed)
		}
	}
	p.partial = p.partial || p.v.broken && !p.placed
	if p.partial && !f.held.IsZero() && p.at.Sub(f.held) >= longTime {
		p.written, p.open = p.writers()
	}
}

// replaced reports whether another file was put in the place of p's, not written
// there: a rename is a change of it, and not of its contents.
func (p *probe) replaced() bool {
	was := p.f.stamp
	return p.stamp.fileID != was.fileID && p.stamp.mtime != p.stamp.ctime || p.f.link && p.target != p.f.target
}

// begins reports whether the text of v is a beginning of old's, or may be.
func (s *Source) begins(f *state, v, old *version) bool {
	if v.broken || v.size >= old.size {
		return false
	}
	if s.store == nil { // nobody drops texts
		return bytes.HasPrefix(old.data, v.data)
	}
	text := s.store.text(f.path, old)
	return text == nil || bytes.HasPrefix(text, v.data)
}

// writers says whether it is certain that p's file has been read whole, for nobody
// had it open to write it, or that somebody has: then the kernel gives no lease, fcntl(2).
func (p *probe) writers() (none, some bool) {
	f, err := os.OpenFile(p.f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, false
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false, errors.Is(err, unix.EAGAIN)
	}
	defer func() { _, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) }() // closing it does the same
	info, err := f.Stat()
	return err == nil && stampOf(info) == p.stamp, false
}

// wait sets when f.next counts, after a look that found it, or found it changed.
func (f *state) wait(p *probe) {
	switch {
	case f.next == gone:
		f.due = f.missing.Add(goneTime)
	case !p.partial || p.written:
		f.due = p.at
	default:
		most := longestTime
		if p.open {
			most = openTime
		}
		f.due = earlier(p.changed().Add(quietTime), f.held.Add(most))
	}
}

// dueTime returns when f.next counts. A file that is gone may come back under another
// name, so it does not count while the directory is changing; and what a file does
// not claim any more may have moved to one that is still being read.
func (s *Source) dueTime(f *state) time.Time {
	due := f.due
	if f.next == gone {
		due = later(due, earlier(s.changed.Add(quietTime), f.missing.Add(longestTime)))
	}
	if (f.next == gone || f.frees) && s.loading(f) {
		due = later(due, f.due.Add(openTime))
	}
	return due
}
