package xtables

import (
	"context"
	"fmt"
	"io"
)

// Save calls each with every line that iptables-save prints, for which no table is created
// in the nft variant. Its error ends the reading.
func (t *Tool) Save(ctx context.Context, each func(line []byte) error) error {
	err := run(ctx, nil, func(out io.Reader) error { return scan(out, each) }, t.save)
	if err != nil {
		return fmt.Errorf("reading what %s prints: %w", t.save, err)
	}
	return nil
}
