package nft

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A ListedRule is a rule of a chain as the kernel lists it.
type ListedRule struct {
	Handle uint64 // its number in the table
	Exprs  []Expression
}

// An Expression is one step of a rule: its name, and attributes of its kind.
type Expression struct {
	Name string
	Data []byte
}

// Verdict returns what an expression "immediate" decides: an NF_* or NFT_* verdict, and
// the chain that it leads to; not ok: it is another expression, or loads a value.
func (e Expression) Verdict() (code int32, chain string, ok bool) {
	v := nlmsg.Find(e.Data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
	if e.Name != "immediate" || v == nil {
		return 0, "", false
	}
	return int32(nlmsg.Uint32(nlmsg.Find(v, unix.NFTA_VERDICT_CODE))), nlmsg.String(nlmsg.Find(v, unix.NFTA_VERDICT_CHAIN)), true
}

// HasVerdictMap reports whether an expression looks up a verdict.
func (e Expression) HasVerdictMap() bool {
	to := nlmsg.Find(e.Data, unix.NFTA_LOOKUP_DREG)
	return e.Name == "lookup" && to != nil && nlmsg.Uint32(to) == unix.NFT_REG_VERDICT
}

// Extension returns the name and data of a match or target of x_tables, whose expressions
// are called "match" and "target".
func (e Expression) Extension() (name string, info []byte) {
	// NFTA_TARGET_NAME and _INFO have the same numbers.
	return nlmsg.String(nlmsg.Find(e.Data, unix.NFTA_MATCH_NAME)), nlmsg.Find(e.Data, unix.NFTA_MATCH_INFO)
}

// ChainRules returns the rules of a chain, in their order; none where there is no such chain.
func (c *Conn) ChainRules(t Table, chain string) (rules []ListedRule, err error) {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETRULE), unix.NLM_F_DUMP, t.Family, 0)
	m = putString(m, unix.NFTA_RULE_TABLE, t.Name)
	m = endMessage(putString(m, unix.NFTA_RULE_CHAIN, chain), 0)
	err = untilUnchanged(func() error {
		g, err := c.FinishedGeneration()
		if err != nil {
			return err
		}
		rules = nil
		return c.request(m, func(m message) error {
			switch {
			case m.generation() != uint16(g.ID):
				return ErrChanged
			case m.isOf(t) && m.string(unix.NFTA_RULE_CHAIN) == chain: // old kernels list the whole table
				rules = append(rules, listedRule(m))
			}
			return nil
		})
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing the rules of chain %s of table %s: %w", chain, t.Name, err)
	}
	return rules, nil
}

func listedRule(m message) ListedRule {
	r := ListedRule{Handle: nlmsg.Uint64(m.find(unix.NFTA_RULE_HANDLE))}
	for _, e := range nlmsg.Attrs(m.find(unix.NFTA_RULE_EXPRESSIONS)) {
		data := nlmsg.Find(e.Value(), unix.NFTA_EXPR_DATA)
		r.Exprs = append(r.Exprs, Expression{exprName(e.Value()), bytes.Clone(data)})
	}
	return r
}

// ScanRules calls each with the rules of a table, chain by chain, in their order. A commit meanwhile
// does not end it. After an error, also of each, the Conn may only be closed: the rest is not read.
func (c *Conn) ScanRules(t Table, each func(chain string, r ListedRule) error) error {
	err := c.ask(listRequest(t, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP), nil, func(m message) error {
		if !m.isOf(t) {
			return nil
		}
		return each(m.string(unix.NFTA_RULE_CHAIN), listedRule(m))
	})
	if err != nil {
		return fmt.Errorf("listing the rules of table %s: %w", t.Name, err)
	}
	return nil
}
