package healthcheck

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/source"
)

// maxError is the most bytes of Result.Error.
const maxError = 200

// An ownError is a fault of this host: it says nothing of the endpoint.
type ownError struct{ err error }

func (e *ownError) Error() string { return "not asked: " + plain(e.err) }
func (e *ownError) Unwrap() error { return e.err }

// A timeoutError says what took too long.
type timeoutError string

func (e timeoutError) Error() string { return string(e) + " timed out" }
func (e timeoutError) Timeout() bool { return true }

// ownErrnos are of this host: descriptors, memory, processes, and ports or the source address.
var ownErrnos = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE,
}

// of returns the error of doing something, in the words of a status: what the kernel said, or that it timed out.
func of(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case isOwn(err):
		return &ownError{err}
	case isTimeout(err):
		return timeoutError(doing)
	}
	return err
}

func isOwn(err error) bool {
	return slices.ContainsFunc(ownErrnos, func(own error) bool { return errors.Is(err, own) })
}

func isTimeout(err error) bool {
	var t net.Error
	var ours timeoutError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ours) || errors.As(err, &t) && t.Timeout()
}

// plain returns an error without addresses, which the reader knows: what the kernel said, if it did.
func plain(err error) string {
	if errno, is := errors.AsType[syscall.Errno](err); is {
		return errno.Error()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "connection closed"
	}
	return err.Error()
}

// words returns an error as people read it: escaped, and of bounded length.
func words(err error) string {
	if err == nil {
		return ""
	}
	if own, is := errors.AsType[*ownError](err); is {
		return shown(own.Error())
	}
	return shown(plain(err))
}

func shown(s string) string {
	s = source.Printable(s[:min(len(s), maxError)])
	if len(s) <= maxError {
		return s
	}
	cut := maxError - len("...")
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return s[:cut] + "..."
}
