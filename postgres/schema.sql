-- The server writes each version of a row anew. While no index but the name's exists, and half of a page
-- is free, it does so within the page, where the next one to come by removes the old versions. So a row
-- of up to 4,000 bytes stays in its page. States are packed, and compressing them gains nothing.
CREATE TABLE IF NOT EXISTS throttle_quota (
	name bytea PRIMARY KEY,
	state bytea NOT NULL,
	expires timestamptz NOT NULL
) WITH (
	fillfactor = 50,
	toast_tuple_target = 4000,
	autovacuum_vacuum_scale_factor = 0.01,
	autovacuum_vacuum_threshold = 1000,
	toast.autovacuum_vacuum_scale_factor = 0.01,
	toast.autovacuum_vacuum_threshold = 1000
);
ALTER TABLE throttle_quota ALTER COLUMN state SET STORAGE EXTERNAL;
COMMENT ON TABLE throttle_quota IS 'Quotas of github.com/apithrottle/throttle, schema 1';
