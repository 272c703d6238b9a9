package nftables

import "svcproxy/proxier"

// Watching tells whether events are heard.
func (b *Backend) Watching() bool { return b.watching.Load() }

// Reads tells how often the table was read.
func (b *Backend) Reads() int { return b.reads }

// Family returns the family of the table.
func (b *Backend) Family() proxier.Family { return b.fam }
