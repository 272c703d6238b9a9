package nftables

import (
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// Watching reports whether events are heard.
func (b *Backend) Watching() bool { return b.watching.Load() }

// Reads tells how often the table was read.
func (b *Backend) Reads() int { return b.reads }

// Unread returns how many Looks after the last that read the table have not done so.
func (b *Backend) Unread() int { return b.unread }

// Foreign tells how many commits of others were counted when the table was last compared.
func (b *Backend) Foreign() uint32 { return b.foreign.Load() }

// LooksUnread is how many Looks at most follow one another without reading the table, while events are heard.
const LooksUnread = looksUnread

// Received tells how many bytes the kernel has answered.
func (b *Backend) Received() int { return b.conn.Received() }

// Limit makes the kernel remember fewer clients, and returns what undoes that.
func Limit(clients, ofPool uint32) (undo func()) {
	all, one := layout.MaxClients, layout.PoolClients
	layout.MaxClients, layout.PoolClients = clients, ofPool
	return func() { layout.MaxClients, layout.PoolClients = all, one }
}

// ListAtMost has fewer elements listed, and returns what undoes that.
func ListAtMost(elements int) (undo func()) {
	usual := manyElements
	manyElements = elements
	return func() { manyElements = usual }
}

// SendAtMost has repairs be sent in transactions of so many bytes, and returns what undoes that.
func SendAtMost(bytes int) (undo func()) {
	usual := chunkBytes
	chunkBytes = bytes
	return func() { chunkBytes = usual }
}

// AssumeFlowtable has the mirror say that the kernel holds a flow table of these interfaces, which
// need not be there.
func (b *Backend) AssumeFlowtable(devices ...string) {
	b.guard.Lock()
	defer b.guard.Unlock()
	b.mirror.SetFlows(b.Dialect, &nft.Flowtable{Name: layout.FlowtableName, Devices: devices, Counter: true})
}

// WithoutHooks has the Backend hold no hooks, as on a kernel before 5.12.
func (b *Backend) WithoutHooks() error {
	err := b.hooks.Release()
	b.hooks = nil
	return err
}
