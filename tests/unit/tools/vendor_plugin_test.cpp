// SPDX-License-Identifier: Apache-2.0
#include "tools/vendor_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

namespace deft::tools {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

// A cache in the loader's form with these (name, path) pairs.
std::string cache_of(const std::vector<std::pair<std::string, std::string>>& libraries) {
    std::string strings;
    std::string entries;
    const auto word = [](std::string& to, std::uint32_t value) {
        to.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    const std::size_t at = 48 + 24 * libraries.size();
    for (const auto& [name, path] : libraries) {
        word(entries, 0x0303);
        word(entries, static_cast<std::uint32_t>(at + strings.size()));
        strings += name + '\0';
        word(entries, static_cast<std::uint32_t>(at + strings.size()));
        strings += path + '\0';
        entries.append(12, '\0');
    }
    std::string cache = "glibc-ld.so.cache1.1";
    word(cache, static_cast<std::uint32_t>(libraries.size()));
    word(cache, static_cast<std::uint32_t>(strings.size()));
    cache.append(48 - cache.size(), '\0');
    return cache + entries + strings;
}

TEST(LoaderCache, GivesThePathsOfALibrary) {
    const std::string cache = cache_of({{"libm.so.6", "/lib/libm.so.6"},
                                        {"libnccl-net.so", "/opt/a/libnccl-net.so"},
                                        {"libnccl-net.so", "/opt/b/libnccl-net.so"}});
    EXPECT_THAT(cached_paths(cache, "libnccl-net.so"),
                ElementsAre("/opt/a/libnccl-net.so", "/opt/b/libnccl-net.so"));
    EXPECT_THAT(cached_paths("ld.so-1.7.0 old part " + cache, "libm.so.6"),
                ElementsAre("/lib/libm.so.6"));
    EXPECT_THAT(cached_paths(cache, "libc.so.6"), IsEmpty());
}

TEST(LoaderCache, DamagedGivesNothing) {
    const std::string cache = cache_of({{"a", "/a"}, {"b", "/b"}});
    for (std::size_t size = 0; size < cache.size(); ++size) {
        (void)cached_paths(cache.substr(0, size), "b");
    }
    EXPECT_THAT(cached_paths("", "a"), IsEmpty());
    std::string wild = cache;
    wild.replace(48 + 4, 4, "\xff\xff\xff\xff");
    EXPECT_THAT(cached_paths(wild, "a"), IsEmpty());
}

class VendorPlugin : public ::testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "deft-vendor-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    void TearDown() override { fs::remove_all(folder_); }
    std::string found(const std::string& search, const std::string& cache = "",
                      const std::vector<std::string>& folders = {}) const {
        const std::string path = "LD_LIBRARY_PATH=" + search;
        const char* const entries[] = {path.c_str(), nullptr};
        return vendor_plugin(Environment(entries), cache, folders);
    }
    // A shared object of this machine: the C library's own math part.
    fs::path put(const std::string& name) const {
        const fs::path file = folder_ / name;
        fs::create_directories(file.parent_path());
        for (const char* const from : {"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6",
                                       "/usr/lib/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"}) {
            std::error_code error;
            if (fs::copy_file(from, file, error)) {
                return file;
            }
        }
        ADD_FAILURE() << "no library to copy";
        return file;
    }
    fs::path folder_;
};

TEST_F(VendorPlugin, IsFoundWhereTheLoaderLooks) {
    EXPECT_EQ(found(folder_), "");
    const fs::path file = put("lib/libnccl-net.so");
    const std::string folder = file.parent_path();
    EXPECT_EQ(found("/nowhere:" + folder), file);
    EXPECT_EQ(found("", cache_of({{"libnccl-net.so", file}})), file);
    EXPECT_EQ(found("", "", {"/nowhere", folder}), file);
    const fs::path first = put("first/libnccl-net.so");
    EXPECT_EQ(found(first.parent_path(), "", {folder}), first);
}

TEST_F(VendorPlugin, IsNoOtherFile) {
    std::ofstream(folder_ / "libnccl-net.so") << "no library";
    EXPECT_EQ(found(folder_), "");
    put("other/libnccl-net-ofi.so");
    EXPECT_EQ(found(folder_ / "other"), "") << "NCCL loads that only where it is named";
    put("deft/libnccl-net-deft.so");
    fs::create_symlink("libnccl-net-deft.so", folder_ / "deft/libnccl-net.so");
    EXPECT_EQ(found(folder_ / "deft"), "") << "deft itself";
}

}  // namespace
}  // namespace deft::tools
