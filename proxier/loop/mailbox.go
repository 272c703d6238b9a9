package loop

import (
	"sync"

	"svcproxy.dev/svcproxy/internal/wake"
)

// A mailbox keeps what a goroutine is told until it gets to it. Writing never blocks.
type mailbox[T any] struct {
	wake chan struct{} // room for one

	mu   sync.Mutex
	next T
}

func newMailbox[T any]() mailbox[T] { return mailbox[T]{wake: make(chan struct{}, 1)} }

// put adds to what is not yet taken.
func (b *mailbox[T]) put(write func(*T)) {
	b.mu.Lock()
	write(&b.next)
	b.mu.Unlock()
	b.ring()
}

// ring wakes the goroutine.
func (b *mailbox[T]) ring() { wake.Once(b.wake) }

func (b *mailbox[T]) take() (next T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next, b.next = b.next, next
	return next
}
