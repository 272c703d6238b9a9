package filter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Cleanup removes what any run may have left of a family. It needs nothing of the host:
// what the host does not support cannot exist.
func Cleanup(ctx context.Context, fam policy.Family) error {
	conn, err := ipset.Dial()
	if ipset.IsUnsupported(err) {
		conn, err = &ipset.Conn{}, nil
	}
	if err != nil {
		return err
	}
	k := newKernel(fam, &xtables.Tool{IPv6: fam == policy.IPv6}, conn)
	return errors.Join(k.Cleanup(ctx), k.Close())
}

// Cleanup removes all our chains, jumps and sets, in every variant, and the keep table.
// Without iptables it cannot see any chains, and removes none.
func (k *Kernel) Cleanup(ctx context.Context) error {
	k.mirror.forget()
	tools, err := xtables.Installed(ctx, k.tool.IPv6)
	if errors.Is(err, exec.ErrNotFound) {
		err = nil
	}
	errs := []error{err}
	for _, t := range tools {
		left, err := k.purge(ctx, t)
		errs = append(errs, err)
		for _, l := range left {
			errs = append(errs, fmt.Errorf("%s: %s", t, l))
		}
	}
	errs = append(errs, k.keep.removeTable(ctx), k.keep.removeHooks(ctx), k.sets.purge(ctx, len(tools) > 0))
	return errors.Join(errs...)
}

// purgeTries is after how many readings, each while others commit, purge trusts the last one.
const purgeTries = 10

// purge removes all our chains, and the jumps to them. It returns the chains that stay,
// empty, because foreign chains jump to them. A failure is retried while each try leaves
// less: beside a foreign writer a part may have been committed, and cannot be removed twice.
// As chains may be missing in what is read then, another reading has to find none.
func (f *family) purge(ctx context.Context, tool *xtables.Tool) (left []string, err error) {
	chains, before := 0, math.MaxInt
	for try := 1; ; try++ {
		tables, once, err := readAtOnce(ctx, tool)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, nil // a kernel without the variant has no chains in it
		}
		if err != nil {
			return nil, err
		}
		n, all := countChains(tables)
		chains = max(chains, n)
		s, left := xtables.Purge(tables)
		err = f.restore(ctx, tool, s)
		switch {
		case err == nil && (once || try > 1 && n == len(left) || try >= purgeTries):
			proxier.RemovedSome(ctx, "chains "+layout.Prefix+"* of "+tool.String(), chains-len(left))
			return left, nil
		case err != nil && (ctx.Err() != nil || all >= before && (once || try >= purgeTries)):
			return left, err
		case err != nil:
			before = all
		}
	}
}

// countChains returns how many chains of ours there are, and with the jumps to them.
func countChains(tables map[string]*xtables.Table) (chains, all int) {
	for _, tab := range tables {
		chains += len(tab.Chains)
		for _, jumps := range tab.Jumps {
			all += len(jumps)
		}
	}
	return chains, all + chains
}
