package filter

import (
	"errors"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// A family is one family of addresses as this host has it, which all parts of a Kernel share.
type family struct {
	words  layout.Dialect
	tool   *xtables.Tool // the variant of iptables in use
	events *events       // of the nft variant; nil: none
	log    *slog.Logger
}

// SetLog sets the log for warnings. It is called before any Sync.
func (f *family) SetLog(log *slog.Logger) { f.log = log }

// events are the events of nf_tables about foreign changes.
type events struct {
	conn    *nft.Conn
	monitor *nft.Monitor

	watching atomic.Bool
	dirty    atomic.Bool // something may have changed since the tables were last read

	touched chan nft.Event // rules of a built-in chain were changed: foreign ones may be in front of ours
}

func openEvents(v6 bool) (*events, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	e := &events{conn: conn, touched: make(chan nft.Event, 1)}
	e.monitor, err = nft.NewNameMonitor(nft.Names{
		Tables: nftTables(v6), Ours: layout.Prefix, Own: xtables.Committed, Scratch: layout.ProbePrefix,
		Others: layout.BuiltIn(), Touched: func(t nft.Event) {
			select {
			case e.touched <- t:
			default: // it is to be looked at already
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

func (e *events) close() error { return errors.Join(e.monitor.Close(), e.conn.Close()) }

// mustRead reports whether the tables must be read. It is called before they are.
func (e *events) mustRead() bool { return e.dirty.Swap(false) || !e.watching.Load() }

// nftTables returns the possible tables of the nft variant.
func nftTables(v6 bool) (tables []nft.Table) {
	for _, name := range []string{"nat", "filter", "mangle", "raw", "security"} {
		tables = append(tables, nft.Table{Family: nfFamily(v6), Name: name})
	}
	return tables
}

func nfFamily(v6 bool) byte {
	return map[bool]byte{false: unix.NFPROTO_IPV4, true: unix.NFPROTO_IPV6}[v6]
}

// forceRead makes the next look read all tables of the nft variant. Any goroutine may call it.
func (f *family) forceRead() {
	if f.events != nil {
		f.events.dirty.Store(true)
	}
}

// Tool names the variant of iptables in use, as in "ip6tables-nft".
func (f *family) Tool() string { return f.tool.String() }

// WritesWholeTables reports whether a change of one rule is a change of its table.
func (f *family) WritesWholeTables() bool { return f.tool.Variant == xtables.Legacy }
