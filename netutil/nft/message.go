package nft

import (
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A message is one nf_tables message that was received.
type message struct{ nlmsg.Message }

func messages(b []byte, do func(message) error) error {
	return nlmsg.Each(b, func(m nlmsg.Message) error { return do(message{m}) })
}

// find returns the value of an attribute, see nlmsg.Find.
func (m message) find(path ...uint16) []byte {
	return nlmsg.Find(m.Body[min(genLen, len(m.Body)):], path...)
}

func (m message) string(path ...uint16) string { return nlmsg.String(m.find(path...)) }
func (m message) uint32(path ...uint16) uint32 { return nlmsg.Uint32(m.find(path...)) }

// isOf reports whether a message is about a table or an object in it: each names
// the table in its attribute 1.
func (m message) isOf(t Table) bool {
	return len(m.Body) > genLen && m.Body[0] == t.Family && m.string(unix.NFTA_TABLE_NAME) == t.Name
}

// generation returns the lower half of the number of the transaction that an object is listed as of.
func (m message) generation() uint16 {
	return nlmsg.Uint16(m.Body[min(2, len(m.Body)):])
}
