package filter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// Probe finds out which features that r may need this host lacks. It returns the
// missing optional ones; any other is an error.
func (k *Kernel) Probe(ctx context.Context, r *layout.Rules) (xtables.Missing, error) {
	randomFully, version, err := k.tool.HasRandomFully()
	if err != nil {
		return nil, err
	}
	if !randomFully {
		return nil, fmt.Errorf("%s %s does not support MASQUERADE --random-fully: it needs 1.6.2 or later", k.tool, version)
	}
	set := ipset.Set{Name: fmt.Sprintf("%s-%d%s", layout.ProbePrefix, os.Getpid(), k.words.Suffix), Type: ipset.HashIP, IPv6: k.tool.IPv6, MaxElem: 1}
	if err := k.sets.Create(ctx, set); err != nil && !errors.Is(err, ipset.ErrExist) {
		return nil, err
	}
	combined, single := r.Features(set.Name)
	missing, err := k.tool.Probe(ctx, layout.ProbePrefix, combined, single)
	if err = errors.Join(err, k.destroy(ctx, set.Name)); err != nil {
		return nil, err
	}
	for name, why := range missing {
		if !slices.Contains(layout.Optional, name) {
			return nil, fmt.Errorf("this host lacks %s, which %s needs: %s", name, k.tool, why)
		}
	}
	return missing, nil
}
